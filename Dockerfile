# syntax=docker/dockerfile:1
#
#   docker build -t informerd:0.1.0 .
#   docker run --rm -p 8090:8090 informerd:0.1.0 demo --listen 0.0.0.0:8090
#
# The image is one static binary and the certificate authorities: no shell, no package manager, nothing to patch but
# informerd itself. Static against glibc rather than musl, so that what is shipped is the target that is tested; since
# glibc 2.34 a static binary resolves names by /etc/hosts and DNS without loading anything.
# It needs /dev/urandom, which every container runtime provides (a bare chroot does not).

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# A target named outright keeps +crt-static away from build scripts and procedural macros, which must stay dynamic.
# jemalloc fixes the page size when it is built; 64 KiB pages work on every arm64 kernel, 4 KiB ones only on some.
# Line tables are stripped (backtraces keep their function names): they are most of the size.
ENV RUSTFLAGS="-C target-feature=+crt-static" \
    CARGO_PROFILE_DIST_STRIP=debuginfo
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/usr/local/cargo/git,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    arch="$(uname -m)" target="$(uname -m)-unknown-linux-gnu" \
    && if [ "$arch" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && cargo build --profile dist --features jemalloc --locked --bin informerd --target "$target" \
    && install -D "target/$target/dist/informerd" /out/informerd

FROM scratch
LABEL org.opencontainers.image.title="informerd" \
      org.opencontainers.image.description="The Kubernetes informer as a daemon: List+Watch for every language, over plain HTTP" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# For API servers reached by kubeconfig or proxy; in a pod the cluster's own authority is mounted.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/informerd /informerd
# A number, because runAsNonRoot cannot see that a name is not root. Writes nothing: run it with a read-only root.
USER 65532:65532
# data, admin
EXPOSE 8090 8091
ENTRYPOINT ["/informerd"]
CMD ["serve"]
