"""Source: one thing to read, found from what the user named."""

from __future__ import annotations

from msgspec import Struct

from stepscope.core.run import RankMetadata
from stepscope.readers.remote import AnyPath


class Source(Struct, frozen=True, kw_only=True):
    """A file, or a stretch of one (a member of an archive)."""

    path: AnyPath
    label: str
    """What to call it in messages."""
    offset: int = 0
    length: int | None = None
    rank: int | None = None
    """What is known of its rank from outside the file."""
    rank_source: str = "not known"
    named: bool = True
    """The user named this very file. One found in a folder or an archive may turn out to be no
    trace, and is then skipped."""
    format: str | None = None
    """A name of formats.FORMATS; None while nobody has looked, and for what nobody claims: it is
    read as a list of events, or refused."""
    part: int | None = None
    """Which of the ranks that share the file, as its reader numbers them; None where the whole file
    is one."""
    archive: AnyPath | None = None
    """The archive it lies in. `path` differs where that is compressed: then it is the archive
    unpacked, and goes away."""

    metadata: RankMetadata | None = None
    """What the run's folder tells of its rank."""

    @property
    def stem(self) -> AnyPath:
        """The lasting file this comes from: what says whether a cache is still good."""
        return self.archive or self.path
