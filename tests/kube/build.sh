#!/usr/bin/env bash
# Builds a kube-apiserver of Debian's source package `kubernetes` (1.20, everything vendored) with Debian's Go, for
# `make test-kube`: 2 to 20 minutes on two cores the first time, nothing after that. As root on Debian; prints the
# path of the binary on its last line. The result and Go's build cache live in HEADWAY_KUBE_CACHE (default
# .cache/kube, which git ignores), so that a second checkout can share them.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${HEADWAY_KUBE_CACHE:-$PWD/.cache/kube}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
binary=$cache/kube-apiserver
if [[ -x $binary ]]; then
  echo "$binary"
  exit 0
fi

# 1. Go, etcd and the one vendored package that has to be newer, by their packages' names.
needed=(golang-go etcd-server golang-github-modern-go-reflect2-dev dpkg-dev)
if ! dpkg -s "${needed[@]}" >/dev/null 2>&1; then
  apt-get update
  # Without etcd's own service being started: the tests start theirs.
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${needed[@]}"
fi

# 2. The source, from the package sources that this machine has anyway (deb-src beside deb, in a folder of its own).
gopath=$cache/go
source=$gopath/src/k8s.io/kubernetes
if [[ ! -f $source/.unpacked ]]; then
  apt=$cache/apt
  mkdir -p "$apt/lists/partial" "$apt/download" "$source"
  sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$apt/source.sources"
  options=(-o Dir::Etc::sourcelist="$apt/source.sources" -o Dir::Etc::sourceparts=/nonexistent
           -o Dir::State::Lists="$apt/lists")
  apt-get "${options[@]}" update
  (cd "$apt/download" && apt-get "${options[@]}" --download-only source kubernetes)
  tar -xzf "$apt"/download/kubernetes_*.orig.tar.gz -C "$source" --strip-components=1
  touch "$source/.unpacked"
fi

export GO111MODULE=off CGO_ENABLED=0 GOPATH=$gopath GOCACHE=$cache/go-build GOFLAGS=-p=${HEADWAY_KUBE_JOBS:-2}
cd "$source"

# 3. Vendored reflect2 crashes with Go 1.18 and later.
reflect2=vendor/github.com/modern-go/reflect2
rm -f "$reflect2"/*.go "$reflect2"/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$reflect2/"

# 4. A generated file that the tarball lacks: the OpenAPI definitions of all packages that ask for them.
generated=pkg/generated/openapi/zz_generated.openapi.go
if [[ ! -f $generated ]]; then
  go build -o "$cache/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  packages=$(grep -rl --include=doc.go '+k8s:openapi-gen=true' staging/src pkg | grep -v -e /metrics/ -e sample- \
    | sed -e 's#^staging/src/##' -e 's#^pkg/#k8s.io/kubernetes/pkg/#' -e 's#/doc.go$##' | sort | paste -sd,)
  packages+=,k8s.io/apimachinery/pkg/runtime,k8s.io/apimachinery/pkg/version,k8s.io/apimachinery/pkg/util/intstr
  packages+=,k8s.io/apimachinery/pkg/api/resource,k8s.io/apimachinery/pkg/apis/meta/v1,k8s.io/client-go/pkg/version
  "$cache/openapi-gen" -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h hack/boilerplate/boilerplate.generatego.txt -r "$cache/violations.txt"
  # Into GOPATH/src by default: the same file.
  test -f "$generated"
fi

# 5. The API server.
go build -o "$binary.part" ./cmd/kube-apiserver
mv "$binary.part" "$binary"
echo "$binary"
