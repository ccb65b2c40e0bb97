"""Work on whole datasets: how it is divided into tasks, and who runs them.

`engine` runs tasks in this process, in processes beside it, or on any executor, such as that of a Dask cluster. Tasks
are pickled on their way: they name what they work on, and never contain credentials.
"""
