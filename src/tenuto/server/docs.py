"""The page at /docs that shows the description, and what it may load: Swagger UI, and nothing inline but its
own one script, which is named by its hash.
"""

import base64
import hashlib
import re
from typing import Final

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response

_SOURCE: Final = "https://cdn.jsdelivr.net"


async def docs_page(request: Request) -> Response:
    """Swagger UI for /openapi.json. It comes from the network of whoever looks, not from here."""
    root = request.scope.get("root_path", "").rstrip("/")
    page = get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json", title="Tenuto", swagger_favicon_url="data:,"
    )
    scripts = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts
    )
    policy = (
        f"default-src 'none'; script-src {_SOURCE} {hashes}; style-src {_SOURCE} 'unsafe-inline'; "
        f"img-src {_SOURCE} data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return Response(page.body, headers={"Content-Security-Policy": policy}, media_type="text/html")
