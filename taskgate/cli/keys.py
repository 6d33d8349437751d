"""`taskgate keys`: API keys are made, listed, replaced and revoked, over HTTP with a key that may."""

from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli.lists import print_table
from taskgate.cli.options import AsJson, ClientCommand
from taskgate.cli.text import note, plain, print_json
from taskgate.contract.scopes import SCOPES

if TYPE_CHECKING:
    from taskgate.client import Client, KeyOptions, NewApiKey

app = typer.Typer(no_args_is_help=True, help="Make, list, replace and revoke API keys.")

KeyId = Annotated[str, typer.Argument(metavar="ID", help="the key's id, as `list` shows it")]


@app.command(cls=ClientCommand)
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="what it is for, for people")],
    scope: Annotated[list[str], typer.Option(help=f"what it may do, several times: {', '.join(SCOPES)}")],
    tenant: Annotated[
        str | None, typer.Option(help="whose tasks it is about  [default: those of your own key]")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.01, metavar="PER_S", help="submissions a second")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="so many of them at once, with --rate")] = None,
    streams: Annotated[int | None, typer.Option(min=1, help="event streams at once, of each gateway process")] = None,
    expires_in: Annotated[int | None, typer.Option(min=1, metavar="SECONDS", help="then it ends")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key: it is printed, this once, alone on standard output.

    Your own key comes from TASKGATE_API_KEY or the file that TASKGATE_API_KEY_FILE names, and needs keys:admin.

    Examples:

      taskgate keys create shop --scope tasks:write --scope tasks:read --tenant shop --rate 50 > shop.key

      taskgate keys create prometheus --scope metrics:read > metrics.key
    """
    client: Client = ctx.obj
    given = {
        "tenant": tenant,
        "rate_per_s": rate,
        "burst": burst,
        "streams": streams,
        "expires_in_s": expires_in,
    }
    options: KeyOptions = {each: value for each, value in given.items() if value is not None}  # type: ignore[assignment]
    _show(client.create_key(name, scope, **options), as_json)


@app.command("list", cls=ClientCommand)
def list_keys(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List API keys, the oldest first; of each its last four characters.

    Examples:

      taskgate keys list

      taskgate keys list --json | jq -r '.[] | select(.last_used_at == null) | .id'
    """
    client: Client = ctx.obj
    keys = client.keys()
    if as_json:
        print_json(keys)
        return
    rows = []
    for key in keys:
        times = (key.get("created_at") or "", key.get("last_used_at") or "never", key.get("expires_at") or "never")
        scopes = " ".join(key.get("scopes") or ())
        rows.append((key["id"], key.get("name", ""), key.get("hint", ""), key.get("tenant", ""), scopes, *times))
    print_table(("ID", "NAME", "ENDS IN", "TENANT", "SCOPES", "CREATED", "USED", "EXPIRES"), rows)


@app.command(cls=ClientCommand)
def rotate(
    ctx: typer.Context,
    key_id: KeyId,
    grace: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="so long the old key is still good")] = 0,
    as_json: AsJson = False,
) -> None:
    """Replace an API key by a new one that may the same, which is printed, this once.

    Examples:

      taskgate keys rotate 0f3a5b7c9d1e2f40 --grace 86400 > shop.key

      taskgate keys rotate 0f3a5b7c9d1e2f40
    """
    client: Client = ctx.obj
    _show(client.rotate_key(key_id, grace_s=grace), as_json)


@app.command(cls=ClientCommand)
def revoke(ctx: typer.Context, key_id: KeyId) -> None:
    """Revoke an API key, now and everywhere; its open streams end.

    Examples:

      taskgate keys revoke 0f3a5b7c9d1e2f40
    """
    client: Client = ctx.obj
    client.revoke_key(key_id)
    print("revoked")


def _show(key: "NewApiKey", as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    print(plain(key["key"]))
    note(f"taskgate: key {plain(key['id'])} of tenant {plain(key['tenant'])}; it is not shown again")
