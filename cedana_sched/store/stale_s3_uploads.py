"""Multipart uploads of dead writers: invisible to readers, and billed all the same.

Neither obstore nor minio's client has public calls for them; minio's URLs, signature and result types are used here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from xml.etree.ElementTree import ParseError

import urllib3
from minio.credentials.credentials import Credentials
from minio.datatypes import ListMultipartUploadsResult
from minio.error import MinioException, S3Error
from minio.helpers import BaseURL
from minio.signer import sign_v4_s3
from urllib3.exceptions import HTTPError

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store.storage_config import S3Location

_AWS = "https://s3.amazonaws.com"
_TIMEOUT = urllib3.Timeout(connect=5, read=30)
_NO_BODY: Final = hashlib.sha256().hexdigest()

Values = dict[str, str | list[str] | tuple[str]]


class _UnfinishedUploads:
    """Requests about the unfinished uploads of one bucket."""

    def __init__(self, location: S3Location, keys: tuple[str, str]) -> None:
        endpoint = urlsplit(location.endpoint or _AWS)
        self._bucket, self._region = location.bucket, location.region
        self._url = BaseURL(f"{endpoint.scheme}://{endpoint.netloc}", location.region)
        self._keys = Credentials(*keys)
        self._http = urllib3.PoolManager(timeout=_TIMEOUT, retries=urllib3.Retry(2, backoff_factor=0.5))

    def abort_stale_uploads(self, prefix: str, until: float, is_spared: Callable[[str], bool]) -> int:
        """Abort uploads started at or before `until` (epoch seconds, by the server's clock); return how many."""
        swept = 0
        marker: str | None = ""
        while marker is not None:
            page = self._list_page(prefix, marker)
            for upload in page.uploads:
                begun = upload.initiated_time
                if begun is not None and begun.timestamp() <= until and not is_spared(upload.object_name):
                    self._send_signed_request("DELETE", {"uploadId": str(upload.upload_id)}, upload.object_name)
                    swept += 1
            marker = (page.next_key_marker or None) if page.is_truncated else None
        return swept

    def _list_page(self, prefix: str, marker: str) -> ListMultipartUploadsResult:
        """List uploads. Without a delimiter: Swift lists nothing for an empty one."""
        query: Values = {"uploads": "", "prefix": prefix, "encoding-type": "url"}
        if marker:
            query["key-marker"] = marker
        return ListMultipartUploadsResult(self._send_signed_request("GET", query))

    def _send_signed_request(self, method: str, query: Values, key: str | None = None) -> urllib3.BaseHTTPResponse:
        url = self._url.build(
            method=method, region=self._region, bucket_name=self._bucket, object_name=key, query_params=query
        )
        now = datetime.now(tz=UTC)
        signed = sign_v4_s3(
            method=method,
            url=url,
            region=self._region,
            headers={
                "Host": url.netloc,
                "x-amz-content-sha256": _NO_BODY,
                "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
            },
            credentials=self._keys,
            content_sha256=_NO_BODY,
            date=now,
        )
        headers = {name: str(value) for name, value in signed.items()}
        answer = self._http.urlopen(method, urlunsplit(url), headers=headers)
        if answer.status not in {200, 204}:
            if not answer.data:
                raise ValueError(f"the server answers with status {answer.status}")
            raise S3Error.fromxml(answer)
        return answer


def sweep_uploads(location: S3Location, prefix: str, until: float, spare: Callable[[str], bool]) -> int:
    """Abort unfinished uploads of keys with the prefix, except those that `spare` keeps.

    No effect if the keys in use are unknown to this process (a role of the machine).

    Raises:
        StoreUnavailableError: no response of the server, or an invalid one.
    """
    keys = location.bucket_keys()
    if keys is None:
        return 0
    try:
        return _UnfinishedUploads(location, keys).abort_stale_uploads(prefix, until, spare)
    except (MinioException, HTTPError, ParseError, ValueError) as error:
        sentence = f"cannot list unfinished uploads of bucket {location.bucket}: {error}"
        raise StoreUnavailableError(sentence, remedy="let the bucket's lifecycle rules abort them") from error
