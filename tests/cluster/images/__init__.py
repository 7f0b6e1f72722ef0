"""Container images without a Docker engine and without a registry, as archives that `ctr images import` takes.

Two kinds:

* One static program and a few files (`archive`): what a Kubernetes add-on's image holds. Written in a moment.
* A Containerfile (`buildah`), the same that `docker build` or `podman build` takes on any other machine:

  | Containerfile | built from | name |
  |---|---|---|
  | `manifests/images/<name>/Containerfile` | the repository | `ghcr.io/cedana/cedana-sched-<name>:<version>` |
  | `tests/e2e/images/<name>/Containerfile` | its own folder | `localhost/test/<name>:dev` |

  What is not sent to the build is in `Containerfile.dockerignore` beside the Containerfile, else in `.dockerignore` of
  the folder that it is built from. `FROM` knows `scratch` and `debian:trixie-slim`, which is made by debootstrap. That
  is also what `ARG BASE` is here; elsewhere it may name an image by its digest.
  `apt-get` in a `RUN` uses this machine's mirror. `pip install` in a `RUN` finds the wheels of the files that the
  Containerfile names in comments such as `# wheels: requirements/runtime.txt`; they are downloaded beforehand. Neither
  setting stays in the image.

An archive is kept under the digest of all that it is made of. `python -m tests.cluster.images` lists and builds;
`release` writes down what is in the product's, and what they are made of.
"""
