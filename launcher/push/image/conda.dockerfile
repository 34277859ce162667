ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER root
COPY . /opt/ddpctl/build/
RUN conda=$(command -v mamba || command -v conda) || \
    { echo "the base image has no conda: use --base to pass an image that has it"; exit 1; }; \
    CONDA_OVERRIDE_CUDA=12.4 "$conda" env update --name base \
      --file /opt/ddpctl/build/environment.yml && \
    "$conda" clean --all --yes
ENV PATH=/opt/conda/bin:$PATH
RUN python3 -c 'import torch; print("torch", torch.__version__)' && command -v torchrun
