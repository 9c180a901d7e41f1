"""Errors of ours as statuses of gRPC, and back. What is not known to be harmless counts as "nobody knows"."""

from typing import Final, NoReturn, Protocol

import grpc

from ..errors import (
    Busy,
    Closed,
    DeadlineExceeded,
    Denied,
    PeerFailed,
    Superseded,
    TailraceError,
    Unreachable,
    WireProblem,
    WireRefused,
)


class Called(Protocol):
    """A method, as far as errors go."""

    @property
    def name(self) -> str: ...

    @property
    def changes(self) -> bool: ...


_EFFECT_KEY: Final = "tailrace-took-effect"
_EFFECTS: Final[dict[bool | None, str]] = {False: "no", True: "yes", None: "unknown"}
_TEXT_CHARS_MAX: Final = 1000  # statuses travel in headers, which are small

_CODES: Final = (
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
    (WireRefused, grpc.StatusCode.INVALID_ARGUMENT),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Closed, grpc.StatusCode.UNAVAILABLE),
    (Superseded, grpc.StatusCode.ABORTED),
)

# gRPC's own words, which a test pins. Should a version choose others, an error says less, but nothing wrong.
_NEVER_CONNECTED: Final = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_NO_TRUST: Final = ("handshake failed", "Hostname Verification Check failed", "verification check failed")
_SENT_TOO_LARGE: Final = ("SERVER: Received message larger", "CLIENT: Sent message larger")
_TOO_MANY_CALLS: Final = "Concurrent RPC limit exceeded"


def refuse(context: grpc.ServicerContext, problem: BaseException) -> NoReturn:
    """End the call with what a peer needs to know; does not return."""
    effect = problem.took_effect if isinstance(problem, TailraceError) else None
    code = next((code for kind, code in _CODES if isinstance(problem, kind)), grpc.StatusCode.INTERNAL)
    text = str(problem) if code is not grpc.StatusCode.INTERNAL else f"{type(problem).__name__}: {problem}"
    context.set_trailing_metadata(((_EFFECT_KEY, _EFFECTS[effect]),))
    context.abort(code, text[:_TEXT_CHARS_MAX])


def problem_of(failed: grpc.RpcError, method: Called, address: str, deadline_s: float) -> WireProblem:
    """What a failed call means to the one who made it."""
    problem = problem_of_stream(failed, method.name, address, deadline_s)
    if not method.changes:
        problem.took_effect = False
    return problem


def problem_of_stream(failed: grpc.RpcError, name: str, address: str, deadline_s: float) -> WireProblem:
    assert isinstance(failed, grpc.Call)
    code, details = failed.code(), failed.details() or ""
    kind, effect, advice = _meaning(code, details)
    problem = kind(f"{name} at {address}: {_seen(code, details, deadline_s)}; {advice}")
    problem.took_effect = _told_effect(failed, effect)
    return problem


def _meaning(code: grpc.StatusCode, details: str) -> tuple[type[WireProblem], bool | None, str]:
    match code:
        case grpc.StatusCode.UNAVAILABLE if any(words in details for words in _NO_TRUST):
            return Denied, False, "look at tls.roots and the certificates' names and dates, at both ends"
        case grpc.StatusCode.UNAVAILABLE if any(words in details for words in _NEVER_CONNECTED):
            advice = "is it running there? If it is, do both ends use TLS, and does it trust our certificate?"
            return Unreachable, False, advice
        case grpc.StatusCode.UNAVAILABLE:
            return Unreachable, None, "it went away; ask what happened before repeating a change"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded, None, "it may still be at it; ask what happened before repeating a change"
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return Denied, False, "ask for a grant for the name in our certificate"
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _TOO_MANY_CALLS in details:
            return Busy, False, "try again in a moment"
        case grpc.StatusCode.RESOURCE_EXHAUSTED if any(words in details for words in _SENT_TOO_LARGE):
            return WireRefused, False, "send less at once, or raise message_bytes_max at both ends"
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return PeerFailed, None, "raise message_bytes_max at both ends"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Busy, None, "try again in a moment"
        case grpc.StatusCode.ABORTED:
            return Superseded, False, "leave it to the newer one"
        case grpc.StatusCode.INVALID_ARGUMENT:
            return WireRefused, False, "repeating it does not help"
        case grpc.StatusCode.UNIMPLEMENTED:
            return WireRefused, False, "is there a cache backend at that address, of a version that goes with ours?"
        case grpc.StatusCode.CANCELLED:
            return Unreachable, None, "this end closed while it waited"
        case _:
            return PeerFailed, None, "its log says more"


def _seen(code: grpc.StatusCode, details: str, deadline_s: float) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {deadline_s:g} s"
    return details or code.name


def _told_effect(failed: grpc.Call, otherwise: bool | None) -> bool | None:
    """What the other side says itself, if it got so far and is one of ours."""
    for key, value in failed.trailing_metadata() or ():
        if key == _EFFECT_KEY:
            return next((effect for effect, word in _EFFECTS.items() if word == value), otherwise)
    return otherwise
