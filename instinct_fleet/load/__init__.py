"""The adaptive load test: a streaming client, a closed or open loop, and a search that measures a node's knee.

Only :mod:`client`, :mod:`driver`, :mod:`dataset` and :mod:`session` touch the outside. What is measured
(:mod:`level`), how sure it is (:mod:`stats`) and what is measured next (:mod:`search`) are pure, so that the same
code runs in virtual time against simulated servers.
"""
