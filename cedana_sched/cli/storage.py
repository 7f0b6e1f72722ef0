"""Which store a command means: `--store`, its S3 settings, or the running engine's own."""

from __future__ import annotations

from typing import Annotated

import typer

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PLACE",
        help="A folder, or s3://bucket/prefix.",
        show_default="STATE-DIR/store",
        envvar="CEDANA_SCHED_STORE",
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--s3-endpoint",
        metavar="URL",
        help="Server of an S3-compatible store. Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        envvar="AWS_ENDPOINT_URL_S3",
    ),
]
RegionOption = Annotated[
    str | None, typer.Option("--s3-region", metavar="NAME", help="Region of the bucket.", envvar="AWS_REGION")
]
