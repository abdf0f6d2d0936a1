"""Side-by-side benchmarks: every figure stands beside a baseline measured in the same run.

``python -m benchmarks`` runs all of them; ``benchmarks/report.py`` writes what came out.
"""
