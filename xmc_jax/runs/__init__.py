"""Uses a run: ranks labels by what it has learnt."""
