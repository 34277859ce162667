from __future__ import annotations

from launcher.supervisor.torchrun import with_caches


def test_libraries_cache_in_the_folder_of_the_host() -> None:
    made = with_caches({"DDPCTL_CACHE_DIR": "/ddpctl-cache"})
    assert made["HF_HOME"] == "/ddpctl-cache/huggingface"
    assert made["TORCH_HOME"] == "/ddpctl-cache/torch"


def test_what_the_job_or_the_image_sets_stays() -> None:
    made = with_caches({"DDPCTL_CACHE_DIR": "/ddpctl-cache", "HF_HOME": "/models"})
    assert made["HF_HOME"] == "/models"


def test_without_a_container_libraries_use_the_users_own_caches() -> None:
    assert with_caches({"A": "1"}) == {"A": "1"}
