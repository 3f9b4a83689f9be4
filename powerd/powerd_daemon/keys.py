"""The key directory as files: read strictly, changed under a lock, replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import zmq

from powerd_core.errors import ConfigError
from powerd_core.keys import (
    BOARDS_FILE,
    CLIENT_FILE,
    CLIENTS_FILE,
    SERVER_FILE,
    AllowedClient,
    Credentials,
    KeyPair,
    find_credentials,
    keys_directory,
    parse_boards,
    parse_clients,
    parse_pair,
)

MAX_BYTES = 1 << 20
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644
_HEADS = {
    SERVER_FILE: "# The keys of this board, made by `powerd keys server`. Whoever has the secret is this board.",
    CLIENTS_FILE: "# Who may connect to this board. Change it with `powerd keys allow` and `revoke`; no restart.",
    CLIENT_FILE: "# The keys of this client, made by `powerd keys client`. Whoever has the secret is this client.",
    BOARDS_FILE: "# Public keys of boards, from `powerd keys trust`.",
}


class KeyDirectory:
    """One directory of keys; the default one without a path. Methods raise `ConfigError`."""

    def __init__(self, path: str | Path | None = None) -> None:
        found = Path(path or keys_directory(os.environ, str(Path.home())))
        try:
            self.path = found.expanduser().absolute()
        except RuntimeError as error:
            raise ConfigError(f"{found}: {error}") from error

    def server(self) -> KeyPair | None:
        """The board's own pair, None before `powerd keys server`."""
        return self._pair(SERVER_FILE)

    def client(self) -> KeyPair | None:
        """This client's own pair, None before `powerd keys client`."""
        return self._pair(CLIENT_FILE)

    def clients(self) -> dict[str, AllowedClient]:
        """Who may connect to the board, by name."""
        text = self.read(CLIENTS_FILE, False)
        return {} if text is None else parse_clients(text, str(self.path / CLIENTS_FILE))

    def boards(self) -> dict[str, str]:
        """Public keys of boards by ``host:port``."""
        text = self.read(BOARDS_FILE, False)
        return {} if text is None else parse_boards(text, str(self.path / BOARDS_FILE))

    def credentials(self, url: str) -> Credentials | None:
        """For the board at ``url``, None when it is not known here."""
        return find_credentials(url, str(self.path), self.read)

    def read(self, name: str, is_secret: bool) -> str | None:
        """A file's text, None when there is none. Refuses what others could have read or changed."""
        path = self.path / name
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if is_secret and mode & 0o077:
                    raise ConfigError(
                        f"{path}: others could read this secret: run `chmod 600 {path}`, or make new keys"
                    )
                for place, its_mode in ((path, mode), (self.path, self.path.stat().st_mode)):
                    if its_mode & 0o022:
                        raise ConfigError(f"{place}: others can change it: run `chmod go-w {place}` and check the keys")
                if not stat.S_ISREG(mode):
                    raise ConfigError(f"{path}: not a file")
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise ConfigError(f"{path}: {path.parent} is no directory: keys lie in one") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}: run powerd as its owner") from error
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes: not a file of keys")
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
        raise ConfigError(f"{path}: not a text file in UTF-8")

    def write_pair(self, name: str, pair: KeyPair) -> None:
        self._write(name, f'public = "{pair.public}"\nsecret = "{pair.secret}"\n', SECRET_MODE)

    def write_clients(self, clients: Mapping[str, AllowedClient]) -> None:
        tables = [f'[clients."{c.name}"]\npublic = "{c.public}"\nrole = "{c.role}"\n' for c in clients.values()]
        self._write(CLIENTS_FILE, "\n".join(tables), PUBLIC_MODE)

    def write_boards(self, boards: Mapping[str, str]) -> None:
        self._write(BOARDS_FILE, "".join(f'"{address}" = "{key}"\n' for address, key in boards.items()), PUBLIC_MODE)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make the directory if need be, and keep other changes out meanwhile."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be used for keys: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _pair(self, name: str) -> KeyPair | None:
        text = self.read(name, True)
        if text is None:
            return None
        path = self.path / name
        pair = parse_pair(text, str(path))
        if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
            raise ConfigError(f"{path}: its public and secret key do not belong together: restore it or make new keys")
        return pair

    def _write(self, name: str, body: str, mode: int) -> None:
        path, new = self.path / name, self.path / f"{name}.new"
        try:
            with suppress(FileNotFoundError):
                new.unlink()
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                # Root makes keys for the user who runs powerd: the directory says who that is.
                owner = self.path.stat()
                if os.geteuid() == 0 and owner.st_uid != 0:
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                file.write(f"{_HEADS[name]}\n{body}")
                file.flush()
                os.fsync(descriptor)
            new.replace(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def make_pair() -> KeyPair:
    """A new pair. Its public key does not begin with ``-``, which a command would take for an option."""
    while True:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        if not public.startswith("-"):
            return KeyPair(public, secret)
