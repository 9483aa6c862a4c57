"""The archive on disk: a zip file with records stored as they are, aligned, and read straight into storages.

Invariants: a path is replaced only by a complete file that is on the disk; nothing is allocated before the archive is
seen to hold as many bytes; a record whose checksum is wrong is never given out.
"""

from __future__ import annotations

import io
import os
import sys
from struct import pack, unpack

from stowgrad import _C
from stowgrad.serialization.pickler import Storages
from stowgrad.serialization.storages import new_storage, view_of

_ALIGNMENT = 64
_CHUNK = 1 << 24


class AtomicFile:
    """A new file beside `path` that takes its place when the block ends well, and is gone when it does not."""

    def __init__(self, path) -> None:
        self.path = os.path.realpath(os.fsdecode(os.fspath(path)))

    def __enter__(self):
        folder, name = os.path.split(self.path)
        if not os.path.isdir(folder):
            raise RuntimeError(f"Parent directory {folder} does not exist.")
        try:
            before = os.stat(self.path)
        except FileNotFoundError:
            before = None
        import stat

        if before is not None and stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(f"save: {self.path} is a directory")
        if before is not None and not stat.S_ISREG(before.st_mode):  # a pipe or a device cannot be replaced
            self.temporary = None
            self.file = open(self.path, "wb")
            return self.file
        self.temporary = os.path.join(folder, f".{name[:100]}.{os.urandom(6).hex()}.tmp")
        self.file = open(self.temporary, "xb")
        if before is not None:
            try:
                os.chmod(self.temporary, stat.S_IMODE(before.st_mode))
            except OSError:
                pass  # the mode is a courtesy
        return self.file

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        if self.temporary is None:
            self.file.close()
            return
        try:
            try:
                if exc_type is None:
                    self.file.flush()
                    os.fsync(self.file.fileno())
            finally:
                self.file.close()
            if exc_type is None:
                os.replace(self.temporary, self.path)
                self.temporary = None
        finally:
            if self.temporary is not None:
                try:
                    os.unlink(self.temporary)
                except OSError:
                    pass
        if self.temporary is None and hasattr(os, "O_DIRECTORY"):
            try:  # the new name is on the disk too
                folder = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                return
            try:
                os.fsync(folder)
            except OSError:
                pass
            finally:
                os.close(folder)


def write_zip(file, name: str, data: bytes, storages: Storages, byteorder: bool) -> None:
    import zipfile
    from hashlib import sha256

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:

        def put(record: str, content, nbytes: int) -> None:
            info = zipfile.ZipInfo(f"{name}/{record}", (1980, 1, 1, 0, 0, 0))
            info.file_size = nbytes
            large = nbytes * 1.05 > zipfile.ZIP64_LIMIT
            # the bytes begin at a multiple of 64, for mapped files: an extra field pads the header
            begin = archive.fp.tell() + 30 + len(info.filename.encode()) + (20 if large else 0) + 4
            info.extra = b"FB" + pack("<H", -begin % _ALIGNMENT) + b"Z" * (-begin % _ALIGNMENT)
            with archive.open(info, "w", force_zip64=large) as out:
                if nbytes:
                    out.write(content)

        put("data.pkl", data, len(data))
        put(".format_version", b"1", 1)
        put(".storage_alignment", b"64", 2)
        if byteorder:
            put("byteorder", sys.byteorder.encode(), len(sys.byteorder))
        digest = sha256(data)
        for key, (storage, nbytes) in storages.records.items():
            put(f"data/{key}", view_of(storage)[:nbytes] if nbytes else b"", nbytes)
            digest.update(pack("<Q", archive.infolist()[-1].CRC))
        put("version", b"3\n", 2)
        put(".data/serialization_id", f"{int.from_bytes(digest.digest()[:16], 'little'):040d}".encode(), 40)


class Archive:
    """A zip file of torch's, checked as it is opened: no record is longer than the file, none overlaps all others."""

    def __init__(self, file, mapped=None) -> None:
        import zipfile

        self.file = file
        self.mapped = mapped
        file.seek(0, io.SEEK_END)
        self.length = file.tell()
        try:
            self.zip = zipfile.ZipFile(file)
        except (
            zipfile.BadZipFile,
            ValueError,
            EOFError,
            OverflowError,
            NotImplementedError,
            UnicodeDecodeError,
            OSError,
        ) as e:
            raise RuntimeError(f"load: failed reading zip archive: {e}; the file is truncated or damaged") from e
        self.entries = {}
        total = 0
        for info in self.zip.infolist():
            if info.header_offset < 0 or info.header_offset + 30 + info.compress_size > self.length:
                raise RuntimeError(
                    f"load: record {info.filename!r} goes beyond the end of the file: it is truncated or damaged"
                )
            total += info.compress_size
            self.entries[info.filename] = info
        if total > self.length:
            raise RuntimeError("load: the archive's records overlap: the file is damaged")
        roots = [n[: -len("data.pkl")] for n in self.entries if n.endswith("/data.pkl") and n.count("/") == 1]
        if not roots:
            raise RuntimeError("load: the zip archive holds no data.pkl: it was not written by save")
        self.root = roots[0]
        if self.root + "constants.pkl" in self.entries:
            raise RuntimeError("load: this is a TorchScript archive (it holds constants.pkl); stowgrad has no jit")

    def has(self, name: str) -> bool:
        return self.root + name in self.entries

    def info(self, name: str):
        info = self.entries.get(self.root + name)
        if info is None:
            raise RuntimeError(f"load: the archive has no record {name!r}: it is truncated or damaged")
        if info.flag_bits & 1:
            raise RuntimeError(f"load: record {name!r} is encrypted")
        if info.compress_type not in (0, 8):
            raise RuntimeError(
                f"load: record {name!r} is compressed in a way that is not read (method {info.compress_type})"
            )
        if info.file_size > (info.compress_size if info.compress_type == 0 else info.compress_size * 1032 + 64):
            raise RuntimeError(
                f"load: record {name!r} claims {info.file_size} bytes and holds {info.compress_size}: it is damaged"
            )
        return info

    def read(self, name: str) -> bytes:
        info = self.info(name)
        out = bytearray(info.file_size)
        self.fill(name, info, memoryview(out))
        return bytes(out)

    def start(self, name: str, info) -> int:
        """Where a record's bytes begin, by its own header."""
        self.file.seek(info.header_offset)
        header = self.file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise RuntimeError(f"load: record {name!r} has no header: the file is damaged")
        name_len, extra_len = unpack("<HH", header[26:30])
        start = info.header_offset + 30 + name_len + extra_len
        if start + info.compress_size > self.length:
            raise RuntimeError(f"load: record {name!r} goes beyond the end of the file: it is truncated or damaged")
        return start

    def fill(self, name: str, info, view: memoryview) -> None:
        """Reads a whole record into `view`, checking its checksum."""
        import zlib

        if info.compress_type == 0:
            self.file.seek(self.start(name, info))
            source = self.file
        else:
            source = self.zip.open(info)
        crc = done = 0
        n = len(view)
        while done < n:
            part = view[done : done + _CHUNK]
            try:
                got = _read_into(source, part)
            except (OSError, EOFError, zlib.error) as e:
                raise RuntimeError(f"load: reading record {name!r} failed: {e}") from e
            except Exception as e:
                if type(e).__name__ != "BadZipFile":
                    raise
                raise RuntimeError(f"load: record {name!r} is damaged: {e}") from e
            if not got:
                raise RuntimeError(f"load: record {name!r} ends after {done} of {n} bytes: the file is truncated")
            crc = zlib.crc32(part[:got], crc)
            done += got
        if crc != info.CRC:
            raise RuntimeError(f"load: record {name!r} does not match its checksum: the file is damaged")

    def storage(self, name: str, nbytes: int):
        info = self.info(name)
        if info.file_size != nbytes:
            raise RuntimeError(
                f"load: storage {name!r} holds {info.file_size} bytes where the pickle says {nbytes}: the file is "
                "damaged"
            )
        if self.mapped is not None and nbytes and info.compress_type == 0:
            start = self.start(name, info)
            return _C.frombuffer(self.mapped[start : start + nbytes], dtype=_C.uint8).untyped_storage()
        storage = new_storage(nbytes)
        if nbytes:
            self.fill(name, info, view_of(storage))
        return storage


def _read_into(source, view: memoryview) -> int:
    if hasattr(source, "readinto"):
        return source.readinto(view) or 0
    data = source.read(len(view))
    view[: len(data)] = data
    return len(data)
