"""Settings of gRPC that both ends share. Only what safety needs: of those that promise speed (frame and window sizes,
chunk sizes, optimisation targets, no retries) none changed the cost of a call when they were measured in turns."""

MESSAGE_BYTES_MAX = 16 << 20
KEEPALIVE_S = 10.0
RECONNECT_S_MAX = 1.0

Options = list[tuple[str, int | str]]


def both(message_bytes_max: int, keepalive_s: float) -> Options:
    """A peer that vanished without a word is noticed after keepalive_s and a half, by calls and by idle connections."""
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.keepalive_time_ms", _ms(keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(keepalive_s / 2)),
        ("grpc.http2.ping_timeout_ms", _ms(keepalive_s / 2)),  # a minute otherwise, whatever the line above says
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server(message_bytes_max: int, keepalive_s: float) -> Options:
    return [
        *both(message_bytes_max, keepalive_s),
        ("grpc.so_reuseport", 0),  # otherwise a second server on the same port is no error: calls go to either
        ("grpc.http2.max_ping_strikes", 0),  # otherwise a client's keepalive counts as an attack
    ]


def peer(
    message_bytes_max: int, keepalive_s: float, server_name: str | None, reconnect_s_max: float = RECONNECT_S_MAX
) -> Options:
    """`reconnect_s_max`: for so long after a failure to connect at most, calls fail without another try."""
    options: Options = [
        *both(message_bytes_max, keepalive_s),
        ("grpc.use_local_subchannel_pool", 1),  # one connection each: peers share no fate and no backoff
        ("grpc.initial_reconnect_backoff_ms", min(50, _ms(reconnect_s_max))),  # caches restart quickly
        ("grpc.max_reconnect_backoff_ms", _ms(reconnect_s_max)),
        ("grpc.min_reconnect_backoff_ms", 3000),  # in truth: how long one attempt to connect may take
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.service_config_disable_resolution", 1),  # or a name server could switch retries on
        ("grpc.enable_http_proxy", 0),  # or an environment variable could send us elsewhere
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
