"""AMD GPUs, as the kernel's KFD driver lists them in /sys/class/kfd. Needs no tool of AMD's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# node number, unique_id and bytes of memory, in decimal, then the name, then `vddnb` if the GPU is part of
# a processor, node by node. Only of such a GPU does the amdgpu driver show the voltage of a northbridge;
# neither KFD nor the size of its memory tells (an MI300A, which is one too, has no such voltage).
SCRIPT = r"""
amd() {
for d in /sys/class/kfd/kfd/topology/nodes/*; do
  id=0 name='' unique=0 render='' bytes=0 kind=''
  { read -r id < "$d/gpu_id"; read -r name < "$d/name"; } 2>/dev/null
  [ "$id" != 0 ] || continue
  while read -r key value; do
    case $key in unique_id) unique=$value ;; drm_render_minor) render=$value ;; esac
  done 2>/dev/null < "$d/properties"
  g=/sys/class/drm/renderD$render/device
  { read -r bytes < "$g/mem_info_vram_total"; } 2>/dev/null
  for v in "$g"/hwmon/*/in1_label; do read -r kind < "$v"; done 2>/dev/null
  printf '%s\t%s\t%s\t%s\t%s\n' "${d##*/}" "$unique" "$bytes" "$name" "$kind"
done
}
"""
_ROW = re.compile(r"([0-9]{1,4})\t([0-9]{1,20})\t([0-9]{1,18})(?:\t([^\t]{0,60}))?(?:\t(vddnb)?)?")


def amd_gpus(lines: Sequence[str]) -> Iterator[tuple[str, str, int | None, bool]]:
    """UUID as ROCm writes it (or ""), name, MiB of memory and whether it is part of a processor, of each
    GPU in ROCm's order."""
    rows = [match for line in lines[:64] if (match := _ROW.fullmatch(line))]
    for row in sorted(rows, key=lambda row: int(row[1])):
        unique, mib = int(row[2]), int(row[3]) // 2**20
        uuid = f"GPU-{unique:016x}" if 0 < unique < 2**64 else ""
        yield uuid, f"AMD {(row[4] or '').strip() or 'GPU'}", mib or None, row[5] is not None


def group_ids(lines: Sequence[str]) -> tuple[int, ...]:
    """The groups that own the GPU's device files, without root's."""
    ids = [int(line) for line in lines[:64] if re.fullmatch(r"[0-9]{1,9}", line)]
    return tuple(sorted({i for i in ids if i}))
