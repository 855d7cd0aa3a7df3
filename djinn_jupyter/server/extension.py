"""The extension as a Jupyter server loads it: builds the parts, registers their endpoints, starts and stops them."""

from __future__ import annotations

from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float

from djinn_jupyter.server.endpoints import AskEndpoint, EnginesEndpoint, LiveEndpoint, Proxy
from djinn_jupyter.server.kernels import Kernels, read_kernels
from djinn_jupyter.server.live import LivePicture
from djinn_jupyter.server.monitor import Monitor

KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
ENGINE = "([A-Za-z0-9.-]+)"


class DjinnServer(ExtensionApp):
    """Configured as `c.DjinnServer` in `jupyter_server_config.py`."""

    name = "djinn_jupyter"
    load_other_extensions = True

    ask_seconds = Float(30.0, help="How long an engine may take to answer a request of the sidebar.").tag(config=True)

    def initialize_handlers(self) -> None:
        self.picture = LivePicture()
        self.monitor = Monitor(self.picture, read_kernels=self._read_kernels)
        proxy = Proxy(self.picture, self.ask_seconds)
        self.handlers.extend(
            [
                ("djinn/api/engines", EnginesEndpoint, {"monitor": self.monitor}),
                (f"djinn/api/engines/{ENGINE}/ask", AskEndpoint, {"monitor": self.monitor, "proxy": proxy}),
                ("djinn/api/live", LiveEndpoint, {"monitor": self.monitor, "picture": self.picture}),
            ]
        )

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Start the monitor once the server's loop runs. An older server starts it at the first request."""
        serverapp.event_logger.add_listener(schema_id=KERNEL_ACTIONS, listener=self._kernel_acted)
        self.monitor.start()

    async def stop_extension(self) -> None:
        await self.monitor.stop()

    async def _read_kernels(self) -> Kernels:
        server = self.serverapp
        assert server is not None
        root = getattr(server.contents_manager, "root_dir", None)  # missing where contents are not local files
        return await read_kernels(server.kernel_manager, server.session_manager, root)

    async def _kernel_acted(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("action") == "restart" and data.get("kernel_id"):
            self.monitor.kernel_restarted(data["kernel_id"])
