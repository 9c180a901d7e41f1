"""The wire: real servers and peers on real sockets."""
