"""Several processes as one program: devices and how arrays lie on them, signals, processes that are gone."""
