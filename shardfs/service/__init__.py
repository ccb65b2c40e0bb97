"""What a process that mounts or serves has while it runs: a log, reports to systemd, metrics for Prometheus."""
