# Any base with Python and torch works. The trainer is a small layer on top of it, and the build needs no
# network if the base is already here:
#   docker build -t ddpctl-trainer .
#   docker build -t ddpctl-trainer --build-arg BASE_IMAGE=ddpctl-cpu-base .
ARG BASE_IMAGE=pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime
FROM ${BASE_IMAGE}

LABEL org.opencontainers.image.title="ddpctl-trainer" \
      org.opencontainers.image.description="DDP training of ResNets; started on every host by ddpctl" \
      org.opencontainers.image.licenses="Apache-2.0"

# a base may set a user who cannot write; ddpctl starts containers as job.user says
USER root
# `python -m trainer` finds it from any folder, as any user, whatever PYTHONPATH a job sets
RUN python3 -c "import pathlib, sysconfig; site = pathlib.Path(sysconfig.get_path('purelib')); \
site.mkdir(parents=True, exist_ok=True); (site / 'ddpctl.pth').write_text('/opt/ddpctl\n')"
WORKDIR /workspace
CMD ["python3", "-m", "trainer", "--help"]

COPY trainer /opt/ddpctl/trainer
# the files of a checkout may be private (umask 077), but containers do not run as root
RUN chmod -R a+rX /opt/ddpctl
