"""How many connections fit into the files that this process may open."""

import logging
import resource

from tenuto import limits

logger = logging.getLogger("tenuto.server")


def make_room_for_connections() -> None:
    """Raise the soft limit of open files as far as is needed and allowed; say it when that is too little."""
    wanted = limits.MAX_HTTP_CONNECTIONS + limits.SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS names no hard limit, and grants 10,240 all the same.
    for files in (wanted, hard, 10_240):
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        if soft < files and (hard == resource.RLIM_INFINITY or files <= hard):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            except (ValueError, OSError):
                continue
            soft = files
    logger.warning(
        "this process may open %d files: room for %d connections, %d of them streams, instead of %d; "
        "`ulimit -n %d` before the start makes room for all",
        soft,
        room_for_connections(),
        most_streams(),
        limits.MAX_HTTP_CONNECTIONS,
        wanted,
    )


def room_for_connections() -> int:
    """At least a few; SPARE_FILES are left for the database, for providers and for tools."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.MAX_HTTP_CONNECTIONS
    return max(min(limits.MAX_HTTP_CONNECTIONS, soft - limits.SPARE_FILES), limits.LEAST_HTTP_CONNECTIONS)


def most_streams() -> int:
    """So many that some connections are left for those who want no stream."""
    return min(limits.MAX_STREAMS, room_for_connections() * 5 // 6)
