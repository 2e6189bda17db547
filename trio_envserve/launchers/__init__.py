"""Start hosts with what people have: Ray, Slurm.  Nothing here schedules machines."""
