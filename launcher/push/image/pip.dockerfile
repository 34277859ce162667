ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER root
COPY . /opt/ddpctl/build/
# Keep the base image's torch: pip must not replace it or the packages that it was built with.
RUN cd /opt/ddpctl/build && export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore && \
    { python3 -m pip --version >/dev/null 2>&1 || python3 -m ensurepip || \
      { echo "the base image has no pip: use --base to pass an image that has it" >&2; exit 1; }; } && \
    { python3 -m pip list --format=freeze > .all && \
      grep -iE '^(torch|torchvision|torchaudio|triton|nvidia-[^=]*)==' .all > .base || true; } && \
    python3 -m pip install --no-cache-dir -r requirements.txt -c .base
RUN python3 -c 'import torch; print("torch", torch.__version__)' && command -v torchrun
