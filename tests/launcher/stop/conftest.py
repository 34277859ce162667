from push_machines import home, machines

__all__ = ["home", "machines"]
