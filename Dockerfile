# The image: two static programs and nothing else.
#
# RUST_IMAGE is rust:1.95-bookworm by digest (docs/how-to/install.md): a tag can come to mean another compiler. There is no
# default: the digest is learnt from the registry that the image is pulled from.
ARG RUST_IMAGE
FROM ${RUST_IMAGE} AS build
# By no version: Debian keeps one per release, signed, and a security update takes its predecessor's place, which would end this build.
# What protoc makes is source code of the build, from definitions that Cargo.lock pins; nothing of the package is in the image.
RUN apt-get update \
    && apt-get install -y --no-install-recommends protobuf-compiler \
    && rm -rf /var/lib/apt/lists/*
# Puts the list of crates into both programs, where scanners find it.
ARG CARGO_AUDITABLE_VERSION=0.7.7
RUN cargo install --quiet --locked cargo-auditable --version "${CARGO_AUDITABLE_VERSION}"
WORKDIR /src
COPY . .
# The target is named although it is the host's own: only then does cargo keep the flag away from build scripts.
RUN triple="$(rustc -vV | sed -n 's/^host: //p')" \
    && name="$(echo "$triple" | tr 'a-z-' 'A-Z_')" \
    && export "CARGO_TARGET_${name}_RUSTFLAGS=-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs,--no-eh-frame-hdr" \
    && cargo auditable build --release --locked --package nrh --bin nrh --bin nrh-probe --target "$triple" \
    && install -D -m 0755 -t /out "target/$triple/release/nrh" "target/$triple/release/nrh-probe"

FROM scratch
LABEL org.opencontainers.image.title="nrh" \
      org.opencontainers.image.description="Node Runtime Health: finds the faulty object on a Kubernetes node and remediates it in place" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/ /
# The controller's user. Probe and Jobs say that they need root.
USER 65532:65532
ENTRYPOINT ["/nrh"]
