"""A Serve application that answers with the file of the `platform` it imported."""

import platform

from ray import serve

import eagleray  # noqa: F401 - proves that both can be imported together


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0})
class PlatformProbe:
    def __call__(self) -> str:
        assert platform.system(), "platform is not the standard library's"
        return str(platform.__file__)


app = PlatformProbe.bind()
