"""Multipart uploads of dead writers: invisible to readers, and billed all the same.

obstore cannot list them; the minio client can, through calls reserved for its own subclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.datatypes import ListMultipartUploadsResult
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store.location import S3Location

_AWS = "https://s3.amazonaws.com"
_TIMEOUT = urllib3.Timeout(connect=5, read=30)


class _Uploads(Minio):
    """Two administrative requests that no public call provides."""

    def sweep(self, bucket: str, prefix: str, until: float, spare: Callable[[str], bool]) -> int:
        """Abort uploads started at or before `until` (epoch seconds, by the server's clock); return how many."""
        swept = 0
        marker: str | None = ""
        while marker is not None:
            page = self._page(bucket, prefix, marker)
            for upload in page.uploads:
                begun = upload.initiated_time
                if begun is not None and begun.timestamp() <= until and not spare(upload.object_name):
                    self._abort_multipart_upload(bucket, upload.object_name, str(upload.upload_id))
                    swept += 1
            marker = (page.next_key_marker or None) if page.is_truncated else None
        return swept

    def _page(self, bucket: str, prefix: str, marker: str) -> ListMultipartUploadsResult:
        """List uploads; the library's own call sends an empty delimiter, for which Swift lists nothing."""
        query: dict[str, str | list[str] | tuple[str]] = {
            "uploads": "",
            "prefix": prefix,
            "encoding-type": "url",
        }
        if marker:
            query["key-marker"] = marker
        return ListMultipartUploadsResult(self._execute("GET", bucket, query_params=query))


def sweep_uploads(location: S3Location, prefix: str, until: float, spare: Callable[[str], bool]) -> int:
    """Abort unfinished uploads of keys with the prefix, except those that `spare` keeps.

    No effect if the keys in use are unknown to this process (a role of the machine).

    Raises:
        StoreUnavailableError: no response of the server, or an invalid one.
    """
    keys = location.keys()
    if keys is None:
        return 0
    endpoint = urlsplit(location.endpoint or _AWS)
    client = _Uploads(
        endpoint.netloc,
        access_key=keys[0],
        secret_key=keys[1],
        secure=endpoint.scheme == "https",
        region=location.region,
        http_client=urllib3.PoolManager(timeout=_TIMEOUT, retries=urllib3.Retry(2, backoff_factor=0.5)),
    )
    try:
        return client.sweep(location.bucket, prefix, until, spare)
    except (MinioException, HTTPError, ValueError) as error:
        sentence = f"cannot list unfinished uploads of bucket {location.bucket}: {error}"
        raise StoreUnavailableError(sentence, remedy="let the bucket's lifecycle rules abort them") from error
