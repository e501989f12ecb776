# The program and the bundled models in a small image. docs/packages.md has the commands.
#   VERSION   what --version says: "$(cmake -P cmake/version.cmake)"
#   CUDA      ON: with the CUDA engine; BUILD_IMAGE has to have nvcc then
# The runtime image's libc may not be older than the build image's.
ARG BUILD_IMAGE=debian:12-slim
ARG RUNTIME_IMAGE=debian:12-slim

# hadolint ignore=DL3006
FROM ${BUILD_IMAGE} AS build
ARG CUDA=OFF
ARG CUDA_ARCH="80;90a;80-virtual"
ARG VERSION=""
WORKDIR /millrace
COPY scripts scripts/
RUN apt-get update && scripts/deps.sh --program && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json LICENSE README.md CHANGELOG.md ./
COPY cmake cmake/
COPY include include/
COPY src src/
COPY bench bench/
COPY lab lab/
COPY examples examples/
COPY models models/
RUN cmake --preset package -DMILLRACE_CUDA="${CUDA}" -DMILLRACE_CUDA_ARCH="${CUDA_ARCH}" \
        -DMILLRACE_VERSION="${VERSION}" \
    && cmake --build build/package -j "$(scripts/jobs.sh)" --target millrace_cli \
    && cmake --install build/package --prefix /opt/millrace --component program --strip

# hadolint ignore=DL3006
FROM ${RUNTIME_IMAGE}
LABEL org.opencontainers.image.title="millrace" \
      org.opencontainers.image.description="Runs, serves and trains transformer language models" \
      org.opencontainers.image.licenses="MIT"
# What NVIDIA's container toolkit brings into the container, where it is installed.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# What millrace-pull is linked to, and whom it trusts.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libcurl4 libssl3 ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 millrace
COPY --from=build /opt/millrace /usr/local
USER 10001
WORKDIR /home/millrace
EXPOSE 8080
ENTRYPOINT ["millrace"]
CMD ["run", "-p", "Once upon a time"]
