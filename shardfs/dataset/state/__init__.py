"""What a session that writes keeps beside a source: its slot, and how several sessions are kept apart.

`directory` is a slot and what is in it, `roots` where those of a source are, `holder` who has one, `slots` which there
are. `holding` takes and releases one, after `entering` their directory, if nobody writes `around` it. `asking` is how
one session lets another commit.
"""
