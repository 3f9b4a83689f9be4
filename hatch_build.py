"""For hatchling, which builds the wheel."""

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Classifiers(MetadataHookInterface):
    """Debian 12's hatchling refuses classifiers that are younger than itself, and it builds the wheel on the board."""

    def update(self, metadata: dict[str, object]) -> None:
        pass

    def get_known_classifiers(self) -> list[str]:
        return ["Programming Language :: Python :: 3.13"]
