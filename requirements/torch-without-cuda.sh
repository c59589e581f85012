#!/bin/sh
# Make torch's CUDA build as small as its CPU build, which package indexes do not serve under the same version.
# Usage: torch-without-cuda.sh SITE_PACKAGES
#
# "import torch" loads CUDA's libraries, also without a GPU, but calls none of their functions. Each large library is
# replaced by one with the same name, versions and symbols, whose functions end the process: 1.9 GiB less.
set -eu
cd "$1"
apt-get update && apt-get install -y --no-install-recommends binutils
rm -r nvidia/cudnn/lib/libcudnn_*.so.9 nvidia/cu13/lib/libnvrtc*.alt.so.* nvidia/cu13/lib/libnvperf_*.so \
    nvidia/nvshmem/lib/libnvshmem_device.* torch/lib/libtorch_cuda_linalg.so torch/include torch/bin/protoc*
work=$(mktemp -d)
for library in $(find nvidia -name 'lib*.so.*' -size +50M); do
    nm -D --defined-only "$library" | sed 's/@.*//' > "$work/symbols"
    awk '$2 ~ /[TW]/ { print ".globl " $3 "\n.type " $3 ", @function\n" $3 ": ud2" }' "$work/symbols" > "$work/code.s"
    as -o "$work/code.o" "$work/code.s"
    # A library with versions has one, which is its only absolute symbol.
    awk '$2 == "A" { print $3 " { global: *; };" }' "$work/symbols" > "$work/versions"
    [ -s "$work/versions" ] || echo '{ global: *; };' > "$work/versions"
    ld -shared -soname "$(basename "$library")" --version-script "$work/versions" -o "$library" "$work/code.o"
done
rm -r "$work"
apt-get purge -y --autoremove binutils
rm -rf /var/lib/apt/lists/*
