# The image: two static programs and nothing else.
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends protobuf-compiler \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The target is named although it is the host's own: only then does cargo keep the flag away from build scripts.
RUN triple="$(rustc -vV | sed -n 's/^host: //p')" \
    && name="$(echo "$triple" | tr 'a-z-' 'A-Z_')" \
    && export "CARGO_TARGET_${name}_RUSTFLAGS=-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs" \
    && cargo build --release --locked --package nrh --bin nrh --bin nrh-probe --target "$triple" \
    && install -D -m 0755 -t /out "target/$triple/release/nrh" "target/$triple/release/nrh-probe"

FROM scratch
LABEL org.opencontainers.image.title="nrh" \
      org.opencontainers.image.description="Node Runtime Health: finds the one sick object on a Kubernetes node and heals it in place" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/ /
# The controller's user. Probe and Jobs say that they need root.
USER 65532:65532
ENTRYPOINT ["/nrh"]
