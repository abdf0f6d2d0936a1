"""The pure core: acknowledgement rules without event loop, clock, randomness, logging or I/O.

Standard library only (design, rule 1). Values come in, values go out; time arrives as ``now``.
"""
