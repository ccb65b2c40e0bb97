"""`shardfs serve`: HTTP over real sockets."""
