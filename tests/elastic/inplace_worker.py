"""A worker that recovers in place, without tensors: it speaks the control protocol and counts steps in a shared folder.

    inplace_worker.py FOLDER STEPS [STEP_S [SIZE]]

Every rank commits the same steps in lockstep: rank r of generation g writes FOLDER/marks/g-step-r and waits for the
others'. They lie in a folder of their own, as orders are looked for at every step and a job leaves thousands of marks.
It ends after STEPS, but not before the world has SIZE workers, and not while FOLDER holds an order or a file `hold`.
An order is a file FOLDER/die-<step> with the words RANK HOW [GENERATION]: at that step or later, and in that generation
or later, that rank ends itself, by a signal of that name or an exception (`raise`). Each order is carried out once.
Whoever waits for others for more than PATIENCE_S seconds (environment) says that it is stuck.
"""

import os
import pathlib
import select
import signal
import socket
import sys
import time

from resilin.elastic import control


class Session:
    def __init__(self) -> None:
        self.sock = socket.socket(fileno=int(os.environ[control.ENV_FD]))
        self.decoder = control.Decoder()
        self.world: control.World | None = None
        self.aborted = 0
        self.pending = 0
        self.leaving = self.finished = False

    def say(self, message: control.Message) -> None:
        self.sock.sendall(control.encode(message))

    def listen(self, wait_s: float) -> None:
        if not select.select([self.sock], [], [], wait_s)[0]:
            return
        data = self.sock.recv(1 << 16)
        if not data:
            os._exit(9)  # the agent is gone
        for message in self.decoder.feed(data):
            if isinstance(message, control.World):
                self.world = message
            elif isinstance(message, control.Abort):
                self.aborted = message.generation
            elif isinstance(message, control.Pending):
                self.pending = message.number
            elif isinstance(message, control.Leave):
                self.leaving = True
            elif isinstance(message, control.Finish):
                self.finished = True


def die_if_told(folder: pathlib.Path, step: int, world: control.World) -> None:
    for order in folder.glob("die-*"):
        try:
            who, how, *since = order.read_text().split()
        except (OSError, ValueError):
            continue  # carried out by another rank just now
        due = step >= int(order.name.removeprefix("die-")) and world.number >= int(since[0] if since else 1)
        if due and int(who) == world.rank:
            order.unlink()
            if how == "raise":
                raise ValueError("told to")
            os.kill(os.getpid(), getattr(signal, how))


def over(session: Session, folder: pathlib.Path, world: control.World) -> bool:
    """Whether `world` was aborted, or one of its ranks gave it up while it formed."""
    return session.aborted >= world.number or (folder / "marks" / f"{world.number}-given-up").exists()


def everybody(session: Session, folder: pathlib.Path, mark: str, world: control.World) -> bool:
    """Wait until every rank of `world` has left `mark`; False when the generation ended meanwhile.

    A world that still forms is given up for a newer one, of which the rank that is waited for may know nothing else.
    """
    (folder / "marks" / f"{world.number}-{mark}-{world.rank}").touch()
    given_up = time.monotonic() + float(os.environ.get("PATIENCE_S", "1000"))
    while late := [
        r for r in range(world.world_size) if not (folder / "marks" / f"{world.number}-{mark}-{r}").exists()
    ]:
        session.listen(0.001)
        if time.monotonic() > given_up and session.aborted < world.number:
            reason = f"all_reduce: rank {late[0]} did not answer"
            session.say(control.Stuck(generation=world.number, ranks=tuple(late), reason=reason))
            given_up += 1000
        if mark == "join" and session.world is not world:
            (folder / "marks" / f"{world.number}-given-up").touch()
        if over(session, folder, world):
            return False
    return True


def train(session: Session, folder: pathlib.Path, steps: int, step_s: float, size: int) -> None:
    current: control.World | None = None
    step = 0
    moves = True  # to another world: where all agree to at a commit (`2-change`), or when this one is over
    while True:
        moves = moves or over(session, folder, current)
        while moves:
            if session.leaving and session.world is current:  # it has no place in another one
                session.say(control.Left(reason="asked to"))
                return
            if session.world is not None and not over(session, folder, session.world):
                current = session.world
                if not everybody(session, folder, "join", current):  # nobody commits any more: the count is final
                    continue
                path = folder / "committed"
                step = int(path.read_text()) if path.exists() else 0
                print(f"world {current.number} rank {current.rank}/{current.world_size} step {step}", flush=True)
                moves = False
            elif session.finished:
                return
            else:
                session.listen(1.0)
        if (folder / "marks" / f"{current.number}-end").exists():
            session.say(control.Done(generation=current.number))
            while not session.finished and session.aborted < current.number and session.world is current:
                session.listen(1.0)
            if session.finished:
                return
            moves = True
            continue
        session.say(control.Progress(generation=current.number, step=step))
        die_if_told(folder, step, current)
        time.sleep(step_s)
        if not everybody(session, folder, f"{step}", current):
            continue
        session.listen(0)
        wants_change = session.leaving or (session.world is not current and session.aborted < current.number)
        if wants_change:
            (folder / "marks" / f"{current.number}-change").touch()
        held = (folder / "hold").exists() or any(folder.glob("die-*"))
        if current.rank == 0 and step + 1 >= steps and current.world_size >= size and not held:
            (
                folder / "marks" / f"{current.number}-end"
            ).touch()  # one rank decides, and all have heard of it after this step
        if not everybody(session, folder, f"{step}b", current):
            continue
        step += 1
        scratch = folder / f"committed-{os.getpid()}"
        scratch.write_text(str(step))
        scratch.replace(folder / "committed")
        session.say(control.Committed(generation=current.number, step=step - 1))
        if (folder / "marks" / f"{current.number}-change").exists():
            if session.leaving:
                return
            while session.world is current and not session.leaving:
                session.listen(1.0)
            moves = True


def main() -> None:
    folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    step_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.005
    size = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    (folder / "marks").mkdir(exist_ok=True)
    session = Session()
    limit = int(os.environ.get("LIMIT", "0"))
    session.say(control.Hello(pid=os.getpid(), endpoint=f"endpoint-{os.getpid()}", limit=limit))
    try:
        train(session, folder, steps, step_s, size)
    except ValueError as error:
        report = {"type": type(error).__name__, "message": str(error), "traceback": "Traceback: told"}
        session.say(control.Failed(report=report))
        sys.exit(1)


if __name__ == "__main__":
    main()
