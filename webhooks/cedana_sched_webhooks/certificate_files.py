"""Certificate files that another program renews; reloaded whenever their folder changes.

A mounted Secret changes by one rename in its folder, so the certificate and its key change together.
"""

from __future__ import annotations

import structlog
from asyncinotify import Mask

from cedana_sched.component.folder_watches import shared_folder_watches
from cedana_sched_webhooks.certificates import UnreadableCertificatesError
from cedana_sched_webhooks.configuration import CertificateFiles
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)

_CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.CLOSE_WRITE


class CertificateFileKeeper:
    """Reloads certificate files on change. Run `run` as a task."""

    def __init__(self, files: CertificateFiles, serving: ServingCertificate, metrics: Metrics) -> None:
        self._files = files
        self._serving = serving
        self._metrics = metrics

    async def run(self) -> None:
        """Load the files now and after each change, forever.

        Raises:
            OSError: a folder of the files does not exist.
        """
        with shared_folder_watches().open_waiter() as changes:
            for folder in {self._files.certificate.parent, self._files.key.parent}:
                changes.add(folder, _CHANGES)
            self._read()
            while True:
                await changes.wait()
                self._read()

    def _read(self) -> None:
        """Load the pair; an incomplete pair is loaded again at the next change."""
        try:
            certificate, key = self._files.certificate.read_bytes(), self._files.key.read_bytes()
            if self._serving.load(certificate, key):
                log.info("certificate", file=str(self._files.certificate))
        except (OSError, UnreadableCertificatesError) as error:
            self._metrics.certificate_problems.inc()
            log.warning("certificate", error=str(error), file=str(self._files.certificate))
