"""Every bound and deadline, with its reason (invariant 12)."""

# --- the batch protocol ---------------------------------------------------------------------------

FENCE_DEADLINE_S = 30.0
"""A worker that restarts needs seconds to come back; a query start may wait for it."""

OPEN_DEADLINE_S = 30.0
"""As for the fence: the query fails with the silent workers named rather than hang."""

STAGE_DEADLINE_S = 3600.0
"""A Spark job may be long; Spark itself supervises it. This only bounds a lost job."""

SEAL_DEADLINE_S = 30.0
"""Long enough for an agent's restart, after which it is known to lack the attempt."""

MARKER_DEADLINE_S = 3.0
"""A batch that carries a marker is not held up longer by a member that only just joined."""

APPLY_DEADLINE_S = 240.0
"""Long enough for an instance that hangs to be found out (`COMMAND_DEADLINE_S`) and replaced: the
next one replays its log before it can apply. A worker that says why it waits is waited for."""

OUTPUT_DEADLINE_S = 120.0
"""A worker that has lost an output makes it again before it can be fetched."""

FULL_RETRY_S = 0.5
"""Between two requests to a worker whose disk is full."""

FULL_PAUSE_S = 2.0
"""After a refusal for want of room, no batch is opened for so long: its rows would be refused."""

FULL_SAID_S = 5.0
"""After so long that it says so."""

RETRY_DELAY_S = 0.1
"""Between two requests to a silent worker."""

MISSING_DELAY_S = 0.01
"""A slice is forwarded down the chain within milliseconds of its put."""

SEAL_MISSES_MAX = 100
"""After a second of missing slices the batch is staged anew rather than waited for, and with each
further attempt after twice as long: half a minute in all, as for a worker that is silent."""

RESEND_EVERY = 20
"""Misses between two requests to the chain to forward an attempt again."""

ATTEMPTS_MAX = 5
"""Whole stagings of one batch before the query fails with the reasons."""

# --- instances -----------------------------------------------------------------------------------

APPLIES_KEPT = 64
"""Apply times that an agent keeps for the pause of a handover: the 10 batches before, with room."""

INSTANCE_RESTART_S = 1.0
"""A process that dies at once is not restarted in a tight loop."""

INSTANCE_POLL_S = 0.05
"""How often a starting instance is asked whether it is ready."""

INSTANCE_START_S = 10.0
"""Python, Arrow and RocksDB are imported within a second or two even on a loaded machine."""

SETBACKS_MAX = 3
"""Times in a row that a command may come to nothing before whoever waits for it is told."""

STOPPED_LOOK_S = 1.0
STOPPED_LOOKS = 10
"""A process that is stopped (SIGSTOP) so many looks in a row is replaced. They are looks and not
seconds, so that an agent that was stopped, too, finds nobody guilty of the time it missed."""

COMMAND_DEADLINE_S = 120.0
"""The longest command is a large batch's apply; a process that hangs longer is replaced."""

REPLAY_TARGET_S = 1.0
"""An instance that starts anew shall be that far behind at most: the design's `replay_target_s`."""

ROW_S_MAX = 50e-6
"""More than a row takes to be applied, as long as batches do not show it: some microseconds for
operators that work on columns. What a batch takes beyond that is due to the batch as such."""

CHECKPOINT_ROUND_LEAST_BATCHES = 8
"""However long a replay would take, all vnodes are not checkpointed in fewer batches than this."""

CHECKPOINT_ROUND_BATCHES = 64
"""Every vnode that batches touch is checkpointed once in so many at most: what a restart replays,
however fast. A checkpoint is written while the next small batch is read, which it slows: with 32,
1,000 rows took a sixth longer."""

CHECKPOINT_HASTE = 16
"""So much faster than that where the log has grown beyond `LOG_BYTES_AIM`."""

CHECKPOINTS_RETAINED = 2
"""K of the design, section 5: an older one serves when the newest turns out bad."""

SLICE_BYTES_MAX = 1 << 30
"""One slice in a put: below Flight's and Arrow's 2 GiB limits."""

# --- copies --------------------------------------------------------------------------------------

CHUNK_BYTES = 1 << 20
"""A piece of a file on its way: large enough for throughput, small enough to keep a loop live."""

CHUNK_CREDITS = 4
"""Chunks that may be under way to one receiver: credit-based flow control (Rhino, 4.2.2)."""

COPIES_AT_ONCE = 4
"""Vnodes that one worker gathers at the same time."""

REPLICATION_TIMEOUT_S = 60.0
"""A checkpoint that a chain has not acknowledged by then is dropped; a newer one is offered."""

YIELD_S = 0.5
"""How long the next chunk of a copy waits for a batch: copies take the time between batches, and
where there is none, still a chunk of each so often."""

OFFER_LOOK_S = 0.1
"""How often an agent looks which checkpoints are new, to offer them to other workers."""

COPY_ROUND_S = 1.0
"""After every source of a copy was tried in vain, the first is tried again."""

FETCH_TIMEOUT_S = 10.0
"""One chunk or log piece; after that it is asked for again."""

LEASE_S = 60.0
"""A checkpoint that a peer reads is kept this long after its last request."""

HASH_STEP_BYTES = 8 << 20
"""Bytes hashed between two messages, so that an agent answers within milliseconds."""

# --- verification ---------------------------------------------------------------------------------

VERIFY_BYTES_S = 256 << 20
"""What one worker reads a second for `rhinoctl verify`: batches and copies go on beside it."""

VERIFY_WISH_S = 15.0
"""A round that nobody has asked for since is over; a restart of the controller takes less."""

DIGEST_DEADLINE_S = 600.0
"""The entries of one checkpoint: half a million a second, so this is for a disk that hangs."""

SCRUB_EVERY_S = 24 * 3600.0
"""Each file of a retained checkpoint is read again within this time."""

SCRUB_BYTES_S = 16 << 20
"""What the scrub of one job reads a second at most: 1.4 TB a day, little of a disk's time."""

SCRUB_LINES_MAX = 20
"""Bad files that are told of a scrub: after so many a disk is bad, and not a file."""

SCRUB_LOOK_S = 60.0
"""How often the scrub looks which files there are."""

# --- loops ---------------------------------------------------------------------------------------

LOOP_WAIT_S = 0.2
"""The longest a loop waits for a message before it looks at its own affairs."""

# --- operations ----------------------------------------------------------------------------------

LAG_BATCHES_MAX = 1
"""A target that is at most so many batches behind has caught up by the time of the marker."""

HANDOVER_DEADLINE_S = 600.0
"""A handover that cannot arm or mark in this time goes back to the old layout."""

FAILOVER_LATE_S = 60.0
"""A failover that has stood still for so long is late: everything it waits for takes seconds."""

DISK_FULL_BYTES = 32 << 20
"""With less room than this the next batches may not be sealed, nor applied."""

PAUSE_MAX_S = 3600.0
"""A handover may be paused so long, all pauses together; then it goes back to the old layout, since
its copies cost disk and network, and no other operation runs meanwhile."""

REQUEST_TIMEOUT_S = {
    "fencing": 2.0,
    "cutting": 5.0,
    "opening": 2.0,
    "staging": 2.0,
    "sealing": 5.0,
    "applying": 60.0,
    "done": 1.0,
    "failed": 1.0,
}
"""One request of a batch, by phase; it is sent again until the phase's own deadline. An apply
waits for the instances, a seal for one fsync."""

HEARTBEAT_S = 1.0
"""How often the controller asks an agent how it is; ten times as often while something moves."""

HEARTBEAT_BUSY_S = 0.1
"""See `HEARTBEAT_S`."""

HEARTBEATS_AT_ONCE = 4
"""Questions that may be under way to one worker."""

HEARTBEAT_TIMEOUT_S = 3.0
"""A worker that does not answer in this time is shown as not seen."""

LEASE_OF_WORKER_S = 5.0
"""A worker that says nothing for so long is lost, unless it decides batches: `lease_s`."""

BEACON_PORTS = 64
"""Ports after an agent's, of which each of its instances listens on one where the agent is on TCP:
more instances than a host has cores are of no use."""

BEREFT_S = 2.0
"""So long an owner may be without anything to open a vnode from before another worker that has a
copy takes over: a small one is fetched in that time."""

AGENT_RESTART_S = 5.0
"""An agent that is down while its instances live, or that has said farewell, has so long to come
back: `agent_restart_s`."""

FAREWELL_S = 1.5
"""An agent that is asked to end waits so long for the controller to ask how it is, to say so."""

DISK_SHARE = 0.8
"""Of a disk's free room, what copies may be planned for: the log and compaction need some."""

BALLAST_BYTES = 8 << 20
"""Room that an agent finds at its start on a disk that is full: for some hundred small files."""

BALLAST_SHARE = 8
"""The ballast is laid down once the disk has so many times its size free."""

BALLAST_LOOK_S = 30.0
"""How often an agent looks if its ballast is there."""

ROOM_LOW_BYTES = 256 << 20
"""A replica disk with less room is said to be nearly full: the log of some large batches."""

FILES_A_VNODE = 7
"""Open files of one vnode's database (rocksdict 0.3.29)."""

FILES_BASE = 128
"""Open files of an instance besides its databases: sockets, its log, libraries, files that are
written."""

MEMORY_SHARE = 0.9
"""Of a worker's memory, what its instances may take together at most."""

INSTANCE_BASE_BYTES = 160 << 20
"""What an instance takes besides its caches: the interpreter, Arrow, a batch."""

OPEN_VNODE_S = 0.03
"""What it takes to open a vnode's database, for predictions."""

CHECKPOINT_WISH_S = 30.0
"""A checkpoint by hand is wished for so long after it was last asked for."""

JOINING_AT_ONCE = 16
"""Copies that one worker gathers at a time, so that the first are whole soon."""

REPLAN_S = 5.0
"""How often replica groups are planned anew though nothing has changed but the sizes."""

SUSPECT_EVERY_S = 0.2
"""How often a driver tells the controller of one silent worker."""

CUT_LOOK_S = 0.02
"""How often whoever waits for a worker looks whether the worker was given up."""

WORKER_DOWN_S = 5.0
"""A worker not seen for so long is down, as `status` says it."""

SESSIONS_UNSEEN = 1000
"""More sessions than a store can have given out of which no worker has heard before it was lost:
workers hear of each within a tenth of a second."""

RECOVER_WAIT_S = 4.0
"""Making the store anew waits so long for what workers have; they are asked every second."""

POLL_WAIT_S = 1.0
"""How long a driver's poll waits for a new offer."""

SESSION_LIVE_S = 5.0
"""A session whose driver has not polled for so long is not live."""

WAKE_EVERY_S = 0.5
"""How often an idle job is woken for a batch while an operation waits for one."""

START_WAIT_S = 60.0
"""How long a job's start waits for workers and instances."""

CALL_WAIT_S = 30.0
"""How long an API call waits for the controller's loop."""

OPERATIONS_KEPT = 200
"""Ended operations that `op list` can show."""

CALLS_WAITING_MAX = 256
"""API calls that may wait for the controller's loop; more are told to come again."""

CALL_BYTES_MAX = 4 << 20
"""The largest body of an API call: an operator's declaration takes a few kilobytes."""

CONTROLLER_WAIT_S = 0.02
"""The controller's loop looks at API calls so often when no worker answers."""

TRIM_EVERY_BATCHES = 8
"""Coverage is made durable, and log and old checkpoints are removed, so often."""

DISK_LOOK_S = 5.0
"""Between two looks whether every disk of a worker is still there, and which have become empty."""

CHECKPOINT_PAUSE_S = 2.0
"""After a disk has refused to take a vnode's checkpoint: batches go on meanwhile."""

DISK_REFUSES_S = 5.0
"""A disk that refuses every write for so long is lost; one that does so for less is waited for."""

DISK_DOUBT_S = 1.0
"""Between two looks at the disks while one of them refuses."""

RETIRE_BYTES_S = 64 << 20
"""At which checkpoints leave a disk that is retired: a part of what a disk writes."""

RETIRE_PAUSE_S = 5.0
"""After a vnode could not leave a disk: what was in the way may have gone by then."""

TIDY_S = 1.0
"""How often an agent looks for copies of vnodes that it does not hold any more."""

LOG_BYTES_AIM = 256 << 20
"""Above this, checkpoints are taken faster (`CHECKPOINT_HASTE`); it never refuses a batch."""

FRESH_CHECKPOINT_S = 3.0
"""A copy waits so long for a checkpoint as new as its log, which saves it fetching old batches."""

AGENT_WAIT_S = 0.05
"""The agent looks after its instances at least so often."""

MESSAGES_A_TURN = 64
"""Messages taken before an agent looks after its instances again."""

# --- Spark tasks ---------------------------------------------------------------------------------

WINDOWS_A_ROW_MAX = 1000
"""Windows that one row may be in: each is a row of the result."""

GATHERED_ROWS_MAX = 131_072
"""Rows up to which a batch is staged in the driver."""

GATHERED_BYTES_MAX = 16 << 20
"""Bytes, as far as the rows before tell, up to which a batch is staged in the driver."""

PUSHES_AT_ONCE = 8
"""Workers to which a task pushes at the same time."""

PUT_TRIES = 3
"""Pushes of one put from a task before the attempt is given up."""

PUT_TIMEOUT_S = 20.0
"""One put: a worker appends it within milliseconds; a black hole is told sooner by keep-alives."""

OUTPUT_TIMEOUT_S = 30.0
"""Fetching one instance's output of a batch."""

OUTPUT_PATIENCE_S = 1.0
"""After that it is asked anew who has an output: its worker may have been given up."""

FETCHES_MAX = 8
"""Outputs of one batch that the driver fetches at a time."""

LOCAL_FRAME_BYTES = 8 << 20
"""Up to this size `result.df` is made from the driver's own copy, above it executors fetch it."""

SESSIONS_A_BATCH = 3
"""A driver that was fenced (by the controller's own record, say) takes another session so often."""

POLL_PAUSE_S = 0.2
"""A driver without a session looks so often whether it has one."""

CHANGE_PAUSE_S = 1.0
"""After an epoch record could not be written it is tried again, not sooner than this."""
