"""AMD GPUs, as the kernel's KFD driver lists them in /sys/class/kfd. Needs no tool of AMD's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# node number, unique_id and bytes of memory, in decimal, then the name; node by node
SCRIPT = r"""
amd() {
for d in /sys/class/kfd/kfd/topology/nodes/*; do
  id=0 name='' unique=0 render='' bytes=0
  { read -r id < "$d/gpu_id"; read -r name < "$d/name"; } 2>/dev/null
  [ "$id" != 0 ] || continue
  while read -r key value; do
    case $key in unique_id) unique=$value ;; drm_render_minor) render=$value ;; esac
  done 2>/dev/null < "$d/properties"
  { read -r bytes < "/sys/class/drm/renderD$render/device/mem_info_vram_total"; } 2>/dev/null
  printf '%s\t%s\t%s\t%s\n' "${d##*/}" "$unique" "$bytes" "$name"
done
}
"""
_ROW = re.compile(r"([0-9]{1,4})\t([0-9]{1,20})\t([0-9]{1,18})(?:\t([^\t]{0,60}))?")


def amd_gpus(lines: Sequence[str]) -> Iterator[tuple[str, str, int | None]]:
    """UUID as ROCm writes it (or ""), name and MiB of memory of each GPU, in ROCm's order."""
    rows = [match for line in lines[:64] if (match := _ROW.fullmatch(line))]
    for row in sorted(rows, key=lambda row: int(row[1])):
        unique, mib = int(row[2]), int(row[3]) // 2**20
        uuid = f"GPU-{unique:016x}" if 0 < unique < 2**64 else ""
        yield uuid, f"AMD {(row[4] or '').strip() or 'GPU'}", mib or None


def group_ids(lines: Sequence[str]) -> tuple[int, ...]:
    """The groups that own the GPU's device files, without root's."""
    ids = [int(line) for line in lines[:64] if re.fullmatch(r"[0-9]{1,9}", line)]
    return tuple(sorted({i for i in ids if i}))
