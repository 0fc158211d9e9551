"""Workers that join a cluster on hosts, and those that leave it."""

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.errors import Exit
from rhinoctl.ops.members import AddView, RemovePlan, RemoveView, exit_of_add
from rhinoctl.render.deploy import deploy_table, plan_table, undeploy_table
from rhinoctl.render.tables import spaced


def add_table(view: AddView) -> RenderableType:
    """The deployment, and what became of the inventory."""
    lines = Text("\n".join(view.lines))
    if view.deployment.dry_run:
        return spaced(
            [plan_table(view.deployment), Text(f"to be written into {view.file}:"), lines]
        )
    if exit_of_add(view) is Exit.DONE:
        end = (
            f"worker {view.worker} has joined; give it state: rhinoctl rescale JOB,"
            " or groups apply JOB"
        )
    else:
        end = (
            f"worker {view.worker} is in {view.file}, but not deployed: go on as above, or with"
            " rhinoctl deploy"
        )
    return spaced([deploy_table(view.deployment), Text(end)])


def remove_plan_table(plan: RemovePlan) -> RenderableType:
    """What is to be done, in its order."""
    steps = [f"{number}. {step}" for number, step in enumerate(plan.steps, start=1)]
    return spaced(
        [
            Text(f"{plan.file}: worker {plan.worker} leaves cluster {plan.cluster}"),
            Text("\n".join([*steps, *plan.lines])),
        ]
    )


def remove_table(view: RemoveView) -> RenderableType:
    """How far it has come, and what to type next."""
    plan = view.plan
    if view.dry_run:
        return remove_plan_table(plan)
    if view.written:
        end = f"worker {plan.worker} has left, and is out of {plan.file}"
    elif view.deployment is None:
        end = (
            f"worker {plan.worker} is still in {plan.file}: repeat the command; if its host is gone"
            " for good, add --lost"
        )
    else:
        end = f"worker {plan.worker} is still in {plan.file}: repeat the command"
    return spaced(
        [
            None if view.undeployed is None else undeploy_table(view.undeployed),
            None if view.deployment is None else deploy_table(view.deployment),
            Text(end),
        ]
    )
