"""One machine reached by SSH, or this one. Nothing else imports paramiko or docker.

`launcher.remote.node` is the way in; it loads paramiko and docker on first use only.
"""
