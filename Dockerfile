FROM golang:1.26 AS build
WORKDIR /src
# The modules are a layer of their own: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /seckill-proxy .

# The binary is static and needs nothing beside it.
FROM scratch
COPY --from=build /seckill-proxy /seckill-proxy
# A number, so that Kubernetes' runAsNonRoot can tell that it isn't root.
USER 65532:65532
# The defaults are for an application on the same host. In a container of its own
# the sidecar would be reachable by nobody, since loopback is the container's.
# Containers that share their network, as in a pod, set them to 127.0.0.1 again.
ENV SECKILL_LISTEN=0.0.0.0:6380 SECKILL_ADMIN=0.0.0.0:9380
EXPOSE 6380 9380
# There is no shell in here to ask with, so the binary asks itself.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/seckill-proxy", "-health"]
ENTRYPOINT ["/seckill-proxy"]
