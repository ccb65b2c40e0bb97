"""Work on whole datasets: what it is cut into, and who does it.

`engine` has tasks run in this process, in processes beside it, or by any executor, as that of a Dask cluster.
The tasks themselves are pickled on their way: they name what they work on, and never carry credentials.
"""
