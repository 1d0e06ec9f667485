"""The same road on Spark: whatever walks over all records or all content runs as a Spark job.

This is the only package that imports PySpark. Import from its modules: ``session`` (a Spark session in one call),
``source`` (a log as a DataFrame), ``jobs`` (batch, inventory, integrity, report). ``java`` works without PySpark.
"""
