"""Every error that powerd raises on purpose.

    PowerdError
    ├── ConfigError      (ValueError)    a configuration, option or name that cannot be used
    ├── SensorError      (OSError)       a sensor, bus or driver that does not do what it should
    ├── WireError        (ValueError)    bytes that are not a frame of ours
    │   └── VersionError                 a frame of ours in a version that this build does not speak
    ├── PeerError        (OSError)       a powerd or recorder that is not there or went away
    │   └── PeerTimeout  (TimeoutError)  … that did not answer in time
    ├── ClockError       (ValueError)    exchanges that give no mapping between two clocks
    ├── ControlError     (OSError)       a knob that cannot be turned, or a lease that is refused or lost
    │   ├── ControlDenied (PermissionError) … that the policy does not allow
    │   └── LeaseHeld                    … that somebody else has
    ├── RunFileError     (OSError)       a run file or journal that is missing, in the way or damaged
    └── AnalysisError    (ValueError)    a run whose contents do not allow what was asked

Commands print any of these as one line and exit with status 2; a message therefore says what is
wrong and what to do. Exceptions of libraries are translated in the one module that imports them.
"""

_HEAD, _TAIL = 1500, 500
"""Characters of a message: what is wrong stands at its beginning, what to do at its end."""


class PowerdError(Exception):
    """Its text never repeats a whole input, however long that was."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} … {text[-_TAIL:]}"


class ConfigError(PowerdError, ValueError): ...


class SensorError(PowerdError, OSError): ...


class WireError(PowerdError, ValueError): ...


class VersionError(WireError): ...


class PeerError(PowerdError, OSError): ...


class PeerTimeout(PeerError, TimeoutError): ...


class ClockError(PowerdError, ValueError): ...


class ControlError(PowerdError, OSError): ...


class ControlDenied(ControlError, PermissionError): ...


class LeaseHeld(ControlError): ...


class RunFileError(PowerdError, OSError): ...


class AnalysisError(PowerdError, ValueError): ...
