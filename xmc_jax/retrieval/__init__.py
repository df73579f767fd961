"""Ranking labels by more than one inner product with each.

key_memory.py   a softmax over the nearest training points and label texts (RAE-XMC)
"""
