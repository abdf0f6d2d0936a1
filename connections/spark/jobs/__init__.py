"""Ready-made jobs: ``ackgate spark <job>``, or a module by ``spark-submit`` (docs/spark-jobs.md).

A job is a click command. What all of them have in common is in ``options`` (the command line) and
``frame`` (session, start, stop); importing them loads no Spark.
"""
