# Targets for users: `make` alone lists them. `cargo xtask --help` lists the tasks of developers.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo

TARGET := $(or $(CARGO_TARGET_DIR),target)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

FUZZ_SECONDS ?= 300
FUZZ_RUN ?= $(shell date +%s)

# Debian's names. What of these is installed already is not asked for again.
BUILD_PACKAGES := gcc libc6-dev pkg-config libelf-dev zlib1g-dev
DEMO_PACKAGES := redis-tools
# A Java compiler and a Go compiler are needed too, whoever made them.
BENCH_PACKAGES = $(DEMO_PACKAGES) libjemalloc2 sqlite3 python3-numpy valgrind libmemcached-dev libevent-dev dpkg-dev patch make \
    vmtouch nocache rsync nginx-light wrk postgresql \
    $(shell command -v javac >/dev/null || echo default-jdk-headless) \
    $(shell command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || echo golang-go)
TEST_PACKAGES := redis-tools openssl sqlite3 python3-numpy clang clang-format llvm qemu-system-x86 bsdutils musl-tools python3 stress-ng g++ \
    libjemalloc2 libmimalloc2.0 libgoogle-perftools4 make patch dpkg-dev libevent-dev systemd btrfs-progs erofs-utils

.PHONY: help rust deps deps-demo deps-bench deps-test build demo check test fuzz bench install

help:
	@echo 'make demo      two minutes with a real Redis: what masu does for it, in one table (root)'
	@echo 'make check     all checks without root and virtual machines: rules, format, lints, unit tests, fuzz targets, documentation'
	@echo 'make test      all tests: checks, live tests here (root) and on two kernels of Debian under QEMU'
	@echo 'make fuzz      every fuzz target for FUZZ_SECONDS ($(FUZZ_SECONDS)), on all processors; FUZZ_TARGETS, FUZZ_EXECUTIONS and FUZZ_RUN say which and how'
	@echo 'make bench     every published claim, measured beside its baseline (root; takes long)'
	@echo 'make build     builds $(TARGET)/release/masu, and resctrl-emulator beside it'
	@echo 'make install   installs masu, resctrl-emulator, libmasu, masu.h, masu.pc, man pages and systemd units below PREFIX ($(PREFIX)); knows DESTDIR'
	@echo 'make deps      installs what a build needs: $(BUILD_PACKAGES)'
	@echo 'The targets above install by themselves what they need and find missing (Debian).'

# Installs those of $(1) that are missing; says nothing when none is.
define install_missing
	@missing=; \
	for package in $(1); do \
	    dpkg-query --show --showformat '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed \
	        || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ] && ! command -v apt-get >/dev/null; then \
	    echo "This is not Debian; please see to it that these are installed:$$missing" >&2; \
	elif [ -n "$$missing" ]; then \
	    echo "installing$$missing"; \
	    $(SUDO) apt-get update -qq || true; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	fi
endef

rust:
	@have=$$($(CARGO) --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/'); \
	if [ "$$(printf '%s\n' '$(RUST_VERSION)' "$$have" | sort -V | head -n 1)" != '$(RUST_VERSION)' ]; then \
	    echo "masu needs Rust $(RUST_VERSION) or newer and finds $${have:-no cargo}: install it with rustup (https://rustup.rs)" >&2; \
	    exit 1; \
	fi

deps: rust
	$(call install_missing,$(BUILD_PACKAGES))

deps-demo: deps
	$(call install_missing,$(DEMO_PACKAGES))

deps-bench: deps
	$(call install_missing,$(BENCH_PACKAGES))

deps-test: deps
	$(call install_missing,$(TEST_PACKAGES))

build: deps
	@$(CARGO) build --release --package masu --package resctrl-emulator

demo: deps-demo
	@$(CARGO) build --release --bin masu --bin masu-bench
	@$(SUDO) $(TARGET)/release/masu-bench demo

check: deps-test
	@$(CARGO) xtask check

test: deps-test
	@$(CARGO) xtask test

# Another run number, other inputs. Ctrl-C ends it with what was counted so far.
fuzz: deps
	@$(CARGO) build --profile fuzz --package fuzz --bin fuzz
	@$(TARGET)/fuzz/fuzz run $(FUZZ_TARGETS) --run $(FUZZ_RUN) $(if $(FUZZ_EXECUTIONS),--executions $(FUZZ_EXECUTIONS)) \
	    --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SAVE),--save $(FUZZ_SAVE))

bench: deps-bench
	@$(CARGO) build --release
	-@integrations/memcached/build --plain && integrations/memcached/build
	@$(SUDO) $(TARGET)/release/masu-bench all

# Not built anew when it is there: `make build && sudo make install` builds as the user. libmasu-*.so are what `masu run` loads
# into programs; libmasu.so is for programs that link with it, by the name in its soname.
install:
	@[ -x $(TARGET)/release/masu ] && [ -x $(TARGET)/release/resctrl-emulator ] || $(MAKE) --no-print-directory build
	install -D -m 755 $(TARGET)/release/masu $(DESTDIR)$(PREFIX)/bin/masu
	install -m 755 $(TARGET)/release/resctrl-emulator $(DESTDIR)$(PREFIX)/bin
	install -d $(DESTDIR)$(PREFIX)/lib/masu $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 $(TARGET)/release/libmasu-*.so $(DESTDIR)$(PREFIX)/lib/masu
	install -m 644 $(TARGET)/release/libmasu.so $(DESTDIR)$(PREFIX)/lib/libmasu.so.$(VERSION)
	ln -sf libmasu.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libmasu.so.0
	ln -sf libmasu.so.0 $(DESTDIR)$(PREFIX)/lib/libmasu.so
	install -m 644 $(TARGET)/release/libmasu.a $(DESTDIR)$(PREFIX)/lib
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' crates/hugepages/libmasu/masu.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/masu.pc
	chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/masu.pc
	install -m 644 crates/hugepages/libmasu/include/masu.h $(DESTDIR)$(PREFIX)/include
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	@for unit in masu.service masu-aging.service; do \
	    sed 's|@PREFIX@|$(PREFIX)|' integrations/systemd/$$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit && \
	    chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3
	@[ -n '$(DESTDIR)' ] || ldconfig || echo 'Run ldconfig as root, so that programs find libmasu.so.0.'
