#!/bin/sh
# To be sourced. `amd_gpus` prints a tab-separated row per GPU of the KFD driver: node number,
# unique_id and memory in bytes (both decimal), name, `vddnb` if the GPU is part of a processor, and
# PCI address. vddnb is a northbridge voltage, which the amdgpu driver reports only for such GPUs.
# Neither KFD nor the memory size identifies them. (An MI300A is one too, but has no such voltage.)
amd_gpus() {
  for d in /sys/class/kfd/kfd/topology/nodes/*; do
    id=0 name='' unique=0 render='' bytes=0 kind='' domain=0 at=''
    { read -r id < "$d/gpu_id"; read -r name < "$d/name"; } 2>/dev/null
    [ "$id" != 0 ] || continue
    while read -r key value; do
      case $key in
        unique_id) unique=$value ;;
        drm_render_minor) render=$value ;;
        domain) domain=$value ;;
        location_id) at=$value ;; # bus, device and function
      esac
    done 2>/dev/null < "$d/properties"
    g=/sys/class/drm/renderD$render/device
    { read -r bytes < "$g/mem_info_vram_total"; } 2>/dev/null
    for v in "$g"/hwmon/*/in1_label; do read -r kind < "$v"; done 2>/dev/null
    pci=${at:+$(printf '%04x:%02x:%02x' "$domain" $((at >> 8)) $((at >> 3 & 31)))}
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "${d##*/}" "$unique" "$bytes" "$name" "$kind" "$pci"
  done
}
