"""The probe: every machine listens for the others and dials them, and each says what it met.

One agent a machine, on whatever can open a socket there: perl (the quickest to start), python3, or
python3 in the job's image. Nothing is installed, and it ends when its standard input does (or after
a minute).

    agent -> launcher   listening ASKED ACTUAL | taken ASKED, then ready
    launcher -> agent   listen PORT
    agent -> launcher   as above
    launcher -> agent   dial KEY ADDRESS PORT ..., then go
    agent -> launcher   dialed KEY ok|wrong|refused|timeout|unreachable NAME, then done

An address counts as reached only when the agent that answers there is the one that was meant:
172.17.0.1 answers on every host with a docker0, each time another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DIAL_TIMEOUT = 3.0  # seconds; a firewall that drops says nothing at all

PYTHON = r"""
import errno, os, socket, sys, threading
name, token, ports = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
lock = threading.Lock()
def say(*words):
    with lock:
        sys.stdout.write(" ".join(map(str, words)) + "\n"); sys.stdout.flush()
def greet(peer):
    try:
        peer.settimeout(10); peer.sendall(("%s %s\n" % (token, name)).encode()); peer.recv(1)
    except OSError:
        pass
    peer.close()
def serve(listener):
    while True:
        peer = listener.accept()[0]
        threading.Thread(target=greet, args=(peer,), daemon=True).start()
def listen(port):
    found = []
    for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((any_address, port)); s.listen(128)
            port = s.getsockname()[1]; found.append(s)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for other in found: other.close()
                return 0
    for s in found:
        threading.Thread(target=serve, args=(s,), daemon=True).start()
    return port if found else 0
def dial(key, address, port):
    try:
        s = socket.create_connection((address, int(port)), timeout=TIMEOUT)
        s.settimeout(TIMEOUT)
        heard = s.makefile().readline().split()
        s.close()
        if len(heard) == 2 and heard[0] == token: say("dialed", key, "ok", heard[1])
        else: say("dialed", key, "wrong")
    except socket.timeout: say("dialed", key, "timeout")
    except ConnectionRefusedError: say("dialed", key, "refused")
    except OSError as error:
        say("dialed", key, "timeout" if error.errno == errno.ETIMEDOUT else "unreachable")
watch = threading.Timer(60, os._exit, (1,)); watch.daemon = True; watch.start()
def open_doors(ports):
    for port in ports:
        actual = listen(int(port))
        say("listening", port, actual) if actual else say("taken", port)
    say("ready")
open_doors(ports)
threads = []
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["listen"]: open_doors(words[1:])
    elif words[:1] == ["dial"]:
        threads.append(threading.Thread(target=dial, args=words[1:4], daemon=True))
    elif words == ["go"]:
        for t in threads: t.start()
        for t in threads: t.join()
        say("done"); threads = []
os._exit(0)
""".replace("TIMEOUT", str(DIAL_TIMEOUT))

PERL = r"""
BEGIN { eval { require Socket; require Errno; require Fcntl;
  Socket->import(qw(:DEFAULT getaddrinfo IPPROTO_IPV6 IPV6_V6ONLY IN6ADDR_ANY));
  Errno->import(qw(EADDRINUSE ECONNREFUSED EINPROGRESS ETIMEDOUT));
  Fcntl->import(qw(F_SETFL O_NONBLOCK)); 1 } or exit 42 }
use strict; use warnings;
my ($name, $token, $ports) = @ARGV;
my (@doors, %guests, %calls, @dials, $going);
$SIG{PIPE} = 'IGNORE'; alarm 60;
sub say_ { syswrite STDOUT, join(' ', @_) . "\n" }
sub door { my ($family, $address) = @_;
  socket(my $s, $family, SOCK_STREAM, 0) or return;
  setsockopt $s, SOL_SOCKET, SO_REUSEADDR, 1;
  setsockopt $s, IPPROTO_IPV6, IPV6_V6ONLY, 1 if $family == AF_INET6;
  bind($s, $address) && listen($s, 128) && fcntl($s, F_SETFL, O_NONBLOCK) or return;
  return $s }
sub open_doors { for my $port (@_) {
    my $four = door(AF_INET, pack_sockaddr_in($port, INADDR_ANY));
    my $actual = $four && (unpack_sockaddr_in(getsockname $four))[0];
    my $six = $four && door(AF_INET6, pack_sockaddr_in6($actual, IN6ADDR_ANY));
    if (!$four || (!$six && $! == EADDRINUSE)) { say_('taken', $port); next }
    push @doors, grep { $_ } $four, $six;
    say_('listening', $port, $actual) }
  say_('ready') }
sub answer { my ($call, @said) = @_; delete $calls{$call->{fd}} if defined $call->{fd};
  close $call->{sock} if $call->{sock}; say_('dialed', $call->{key}, @said) }
sub failed { my ($call, $e) = @_;
  answer($call, $e == ECONNREFUSED ? 'refused' : $e == ETIMEDOUT ? 'timeout' : 'unreachable') }
sub dial { my ($key, $address, $port) = @_; my $call = {key => $key, heard => ''};
  my ($error, $to) = getaddrinfo($address, $port, {socktype => SOCK_STREAM});
  return failed($call, 0) if $error || !$to;
  socket($call->{sock}, $to->{family}, SOCK_STREAM, 0) or return failed($call, 0);
  fcntl $call->{sock}, F_SETFL, O_NONBLOCK;
  connect($call->{sock}, $to->{addr}) or $! == EINPROGRESS or return failed($call, $! + 0);
  @$call{qw(fd until)} = (fileno $call->{sock}, time + 1 + LIMIT); $calls{$call->{fd}} = $call }
sub hear { my ($call) = @_;
  if (!$call->{through}) { my $e = unpack 'i', getsockopt $call->{sock}, SOL_SOCKET, SO_ERROR;
    return $e ? failed($call, $e) : ($call->{through} = 1) }
  my $more = sysread $call->{sock}, $call->{heard}, 512, length $call->{heard};
  return if $more && $call->{heard} !~ /\n/;
  my @h = split ' ', $call->{heard};
  answer($call, @h == 2 && $h[0] eq $token ? ('ok', $h[1]) : 'wrong') }
sub obey { my ($verb, @w) = split ' ', shift; return unless defined $verb;
  if ($verb eq 'listen') { open_doors(@w) }
  elsif ($verb eq 'dial') { push @dials, [@w] }
  elsif ($verb eq 'go') { dial(@$_) for @dials; @dials = (); $going = 1 } }
open_doors(split /,/, $ports);
my $told = '';
while (1) { my ($in, $out) = ('', '');
  vec($in, $_, 1) = 1 for 0, map({ fileno $_ } @doors), keys %guests;
  $_->{through} ? vec($in, $_->{fd}, 1) : vec($out, $_->{fd}, 1) = 1 for values %calls;
  select $in, $out, undef, %calls ? 0.2 : undef;
  for my $s (@doors) { next unless vec($in, fileno $s, 1) && accept(my $peer, $s);
    fcntl $peer, F_SETFL, O_NONBLOCK; syswrite $peer, "$token $name\n"; $guests{fileno $peer} = $peer }
  # who dialled hangs up first: a port that this side closes would stay taken for a minute
  vec($in, $_, 1) && delete $guests{$_} for keys %guests;
  for my $call (values %calls) { my $ready = $call->{through} ? $in : $out;
    vec($ready, $call->{fd}, 1) ? hear($call) : time >= $call->{until} && answer($call, 'timeout') }
  if (vec $in, 0, 1) { sysread STDIN, $told, 65536, length $told or last;
    obey($1) while $told =~ s/(.*)\n// }
  if ($going && !%calls) { say_('done'); $going = 0 } }
""".replace("LIMIT", str(round(DIAL_TIMEOUT)))

SHELL = r"""
name=$1 token=$2 ports=$3 image=$4
if command -v perl >/dev/null; then
  perl -e "$6" "$name" "$token" "$ports"
  [ $? -eq 42 ] || exit # a perl without its modules says 42 before anything else
fi
for p in python3 /usr/libexec/platform-python; do
  if "$p" -c 'import socket, threading' 2>/dev/null; then
    exec "$p" -c "$5" "$name" "$token" "$ports"
  fi
done
if [ -n "$image" ] && docker image inspect "$image" >/dev/null 2>&1; then
  exec docker run --rm -i --network host --entrypoint python3 "$image" \
    -c "$5" "$name" "$token" "$ports"
fi
echo none
"""


@dataclass(frozen=True)
class Dial:
    """From one machine to an address of another. Machines are named by their index."""

    source: int
    target: int
    address: str
    is_master_port: bool = False


def agent_args(name: int, token: str, ports: Sequence[int], image: str) -> list[str]:
    """Arguments of SHELL. A port of 0 means any free port; an empty image means that there is none."""
    listed = ",".join(map(str, ports))
    return [str(name), token, listed, image, PYTHON, PERL]


def parse_ready(lines: Sequence[str]) -> dict[int, int] | None:
    """Asked port -> the port that is listened on; a taken one is missing. None: no agent."""
    if "ready" not in lines:
        return None
    words = [line.split() for line in lines]
    return {int(w[1]): int(w[2]) for w in words if w[:1] == ["listening"] and len(w) == 3}


def parse_answer(line: str, dials: Sequence[Dial]) -> tuple[Dial, str] | None:
    """A `dialed` line as the dial and what came of it: ok, wrong, refused, timeout, unreachable."""
    words = line.split()
    if len(words) < 3 or words[0] != "dialed" or not words[1].isdigit():
        return None
    dial = dials[int(words[1])]
    result = words[2]
    if result == "ok" and words[3:] != [str(dial.target)]:
        result = "wrong"
    return dial, result
