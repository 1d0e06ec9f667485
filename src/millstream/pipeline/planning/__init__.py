"""How the driver divides the work of a job: ranges, spans, bins and cuts."""
